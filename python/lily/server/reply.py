"""Answers on the wire: JSON bodies, errors, and server-sent events."""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.types import Send

from .errors import ApiError, Dialect

Headers = list[tuple[bytes, bytes]]

SSE_HEADERS: Final[Headers] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the events otherwise
]
DONE: Final = b"data: [DONE]\n\n"

encode: Final = msgspec.json.Encoder().encode


def sse(value: object) -> bytes:
    """One event without a name."""
    return b"data: " + encode(value) + b"\n\n"


def named_sse(name: str, value: object) -> bytes:
    """One event with a name."""
    return b"event: " + name.encode() + b"\ndata: " + encode(value) + b"\n\n"


def request_headers(request_id: str) -> Headers:
    """The id under the names that the clients of OpenAI and Anthropic look for."""
    value = request_id.encode()
    return [(b"x-request-id", value), (b"request-id", value)]


async def send_json(
    send: Send, body: bytes, request_id: str, status: int = 200, headers: Headers | None = None
) -> None:
    lines = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *request_headers(request_id),
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: ApiError, dialect: Dialect, request_id: str) -> None:
    headers: Headers = []
    if error.retry_after is not None:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    if error.closes:
        headers.append((b"connection", b"close"))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send_json(send, encode(error.body(dialect, request_id)), request_id, error.status, headers)
