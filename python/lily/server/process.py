"""The server process: a socket, an event loop, and an orderly end."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import resource
import socket
from typing import Final

import uvicorn

from .app import create_app
from .host import EngineMaker
from .options import KEEP_ALIVE_SECONDS, MAX_CONNECTIONS, MAX_HEADER_BYTES, SHUTDOWN_SECONDS, ServerOptions
from .protocol import Protocol
from .service import Service

_log: Final = logging.getLogger("lily.server")


class Server(uvicorn.Server):
    """Answers while the model loads. When told to stop it takes nothing new, lets requests finish until the deadline,
    and ends those that are left with an error that says why."""

    def __init__(self, make_engine: EngineMaker, options: ServerOptions) -> None:
        self.service = Service(make_engine, options)
        super().__init__(
            uvicorn.Config(
                create_app(self.service),
                http=Protocol,
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                log_level="error",  # requests are in the log of the server itself
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS + 2,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            host, port = listener.getsockname()[:2]
            _log.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self.service.host.loading_failed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        admission = self.service.admission
        admission.stopping = True
        if len(admission):
            _log.info("stopping: %d requests may finish within %d seconds", len(admission), SHUTDOWN_SECONDS)
        deadline = asyncio.get_running_loop().call_later(SHUTDOWN_SECONDS, admission.abort_all)
        try:
            await super().shutdown(sockets)
        finally:
            deadline.cancel()
        _log.info("stopped")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, before anything else is done. Raises OSError, naming the address, if it cannot be had.

    Of the addresses of a name the first one of IPv4 is taken. "::" is all addresses, those of IPv4 too.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
        both = address[0] == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server(address[:2], family=family, backlog=1024, dualstack_ipv6=both)
        # For all its connections. asyncio does it only for sockets that name their protocol; without it the second of
        # two small writes waits 40 ms for the client's acknowledgement of the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except socket.gaierror as error:
        raise OSError(f"cannot listen on {host}: {error.strerror}; choose another --host") from None
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        flag = "--host" if error.errno == errno.EADDRNOTAVAIL else "--port"
        raise OSError(f"cannot listen on {host}, port {port}: {reason}; choose another {flag}") from None


def serve(make_engine: EngineMaker, options: ServerOptions) -> None:
    """Serve until a signal stops it. Raises what the loading of the model raised, OSError if the port is taken."""
    with bind(options.host, options.port) as listener:
        if options.api_key is None and not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
            _log.warning("listening on %s without --api-key: everybody who reaches it may use it", options.host)
        _raise_file_limit()
        server = Server(make_engine, options)
        server.run(sockets=[listener])
    failure = server.service.host.failure
    if failure is not None:
        raise failure


def _raise_file_limit() -> None:
    """Each connection is an open file, and some systems allow 256 of them unless asked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + 256
    if soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
