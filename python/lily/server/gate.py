"""What stands in front of every route: ambiguous requests, foreign web pages and wrong keys are turned away."""

from __future__ import annotations

import hmac
import ipaddress
from secrets import token_hex
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from .errors import ApiError, Dialect
from .options import MAX_HEADER_BYTES, ServerOptions
from .reply import send_error

# These tell nothing about the model or its users; the page asks for the key itself.
_OPEN_PATHS: Final = frozenset({"/", "/health", "/ready", "/openapi.json"})


class Gate:
    """Gives each request an id, in scope["state"]["request_id"], and refuses those that may not come in."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app = app
        self._key = None if options.api_key is None else options.api_key.encode()
        self._origins = frozenset(origin.rstrip("/").lower() for origin in options.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id
        try:
            self._check(scope)
        except ApiError as error:
            await send_error(send, error, dialect_of(scope["path"]), request_id)
        else:
            await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        if scope["http_version"] not in ("1.0", "1.1"):
            raise _bad_request(f"HTTP/{scope['http_version']} is not spoken here, but HTTP/1.1", status=505)
        num_bytes = len(scope["raw_path"]) + len(scope["query_string"])
        if num_bytes + sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            # The protocol stops longer ones that come in pieces; this is for those that came as a whole.
            raise _bad_request(f"the request line and the headers are longer than {MAX_HEADER_BYTES} bytes", status=431)
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers and "content-length" in headers:
            # Two servers may disagree about where such a request ends, and then about whose the rest is.
            raise _bad_request("a request has content-length or transfer-encoding, not both")
        if len(headers.getlist("host")) > 1:
            raise _bad_request("a request has one host header")
        self._check_origin(headers)
        if self._key is not None and scope["path"] not in _OPEN_PATHS and scope["method"] != "OPTIONS":
            self._check_key(headers, self._key)

    def _check_origin(self, headers: Headers) -> None:
        """A web page may call only the server that it came from, unless its origin is allowed.

        Its name must then be an address or localhost: a page of any other name may have pointed that name here.
        """
        origin = headers.get("origin")
        if origin is None or "*" in self._origins or origin.lower() in self._origins:
            return
        host = headers.get("host", "")
        if urlsplit(origin).netloc.lower() == host.lower() and _is_address(host):
            return
        raise ApiError(
            403,
            f"pages of {origin!r} may not call this server; --allowed-origins {origin} lets them",
            code="origin_not_allowed",
        )

    def _check_key(self, headers: Headers, key: bytes) -> None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # Headers are latin-1; compare_digest takes the same time wherever two texts differ.
        if not hmac.compare_digest(given.encode("latin-1"), key):
            raise ApiError(
                401,
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
            )


def with_cors(app: ASGIApp, options: ServerOptions) -> ASGIApp:
    """Answers to the browsers' own checks, if any origin is allowed."""
    if not options.allowed_origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=[origin.rstrip("/") if origin != "*" else origin for origin in options.allowed_origins],
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "request-id", "retry-after"],
    )


def _bad_request(message: str, *, status: int = 400) -> ApiError:
    return ApiError(status, message, code="bad_request", closes=True)


def dialect_of(path: str) -> Dialect:
    return "anthropic" if path.removeprefix("/v1").startswith("/messages") else "openai"


def _is_address(host: str) -> bool:
    name = urlsplit(f"//{host}").hostname or ""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
