"""HTTP/1.1 on one connection, with limits on how long and how much a client may hold of the server."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .errors import ApiError
from .options import MAX_CONNECTIONS, REQUEST_HEAD_SECONDS, STALL_SECONDS
from .reply import encode

_log: Final = logging.getLogger("lily.server")
_READABLE: Final = {400: "the request is no valid HTTP/1.1", 431: "the request line and the headers are too long"}


class Protocol(H11Protocol):
    """Closes connections whose client sends no whole request head in time, or reads nothing of its answer."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if len(self.connections) >= MAX_CONNECTIONS:
            _log.warning("more than %d connections: one is refused", MAX_CONNECTIONS)
            self.transport = transport
            transport.abort()
            return
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(STALL_SECONDS, self._stalled)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def send_400_response(self, msg: str) -> None:
        """In the form of all errors, with the status that fits; nothing if an answer has begun already."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        status = getattr(sys.exception(), "error_status_hint", 400)
        message = _READABLE.get(status, _READABLE[400])
        body = encode(ApiError(status, message, code="bad_request").body("openai", ""))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _watch_head(self) -> None:
        """Start the clock when a client owes a request (or the rest of a refused one), stop it while one is served."""
        serving = self.cycle is not None and not self.cycle.response_complete
        idle = self.timeout_keep_alive_task is not None  # between two requests another clock runs
        if serving or idle or self.transport.is_closing():
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(REQUEST_HEAD_SECONDS, self.transport.abort)

    def _stalled(self) -> None:
        _log.info("a client read nothing for %d seconds: its connection is closed", STALL_SECONDS)
        self.transport.abort()

    def _cancel_timers(self) -> None:
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._stall_timer = None
