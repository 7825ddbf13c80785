"""The body of a request: read within limits of size, time and nesting, then decoded into its schema."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Final, TypeVar

import msgspec
import numpy as np
from starlette.requests import ClientDisconnect, Request

from .errors import ApiError, invalid
from .options import BODY_SECONDS, MAX_BODY_BYTES, MAX_JSON_DEPTH

Schema = TypeVar("Schema")  # a msgspec.Struct

_log: Final = logging.getLogger("lily.server")
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as signed bytes: one level in, one level out
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[{]}"))
_VALIDATION_PATH: Final = re.compile(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?", re.DOTALL)


async def read_body(request: Request) -> bytes:
    """Raises ApiError 413 for a body that is too large, 408 for one that comes too slowly."""
    declared = request.headers.get("content-length", "0")
    if len(declared) > 18 or int(declared) > MAX_BODY_BYTES:  # the protocol has checked that these are digits
        raise _too_large(f"{declared} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise _too_large("larger")
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_SECONDS} seconds", code="body_timeout") from None
    except ClientDisconnect:
        raise ApiError(499, "the client left before its request was complete", code="cancelled") from None
    return bytes(body)


def decode(body: bytes, decoder: msgspec.json.Decoder[Schema]) -> Schema:
    """Raises ApiError 400 for what is no JSON, nested too deeply or of a wrong type, naming the field."""
    # Few brackets cannot be nested deeply: most bodies need no closer look.
    if body.count(b"[") + body.count(b"{") > MAX_JSON_DEPTH and (depth := nesting(body)) > MAX_JSON_DEPTH:
        raise invalid(None, f"the body is nested {depth} levels deep; at most {MAX_JSON_DEPTH} are supported")
    try:
        decoded = decoder.decode(body)
    except msgspec.ValidationError as error:
        match = _VALIDATION_PATH.fullmatch(str(error))
        message, param = (match[1], match[2]) if match else (str(error), None)
        raise invalid(param or None, f"{message}{f', in {param}' if param else ''}") from None
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: {error.reason}", code="invalid_json") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON that can be read: {error}", code="invalid_json") from None
    if _log.isEnabledFor(logging.DEBUG) and isinstance(decoded, msgspec.Struct):
        _report_unknown(body, decoded)
    return decoded


def nesting(body: bytes) -> int:
    """How deep brackets are nested outside of strings; nothing else about the text is checked."""
    steps = np.frombuffer(_STRING.sub(b"", body).translate(_STEPS, _NO_BRACKETS), np.int8)
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))


def _report_unknown(body: bytes, decoded: msgspec.Struct) -> None:
    known = {field.encode_name for field in msgspec.structs.fields(decoded)}
    unknown = sorted(set(msgspec.json.decode(body, type=dict[str, msgspec.Raw])) - known)
    if unknown:
        _log.debug("unknown fields are ignored: %s", ", ".join(unknown))


def _too_large(found: str) -> ApiError:
    return ApiError(413, f"the body is {found}; at most {MAX_BODY_BYTES} bytes are accepted", code="request_too_large")
