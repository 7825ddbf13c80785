"""What a server is told at its start, and the limits that protect it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_BODY_BYTES: Final = 16 * 1024 * 1024  # many times the text of the longest context
MAX_HEADER_BYTES: Final = 64 * 1024
MAX_JSON_DEPTH: Final = 128
MAX_JSON_CONTAINERS: Final = 200_000  # objects and lists: more than the messages and parts that fill a context
MAX_JSON_VALUES: Final = 600_000  # members of those; more than as many messages have, or as token ids fill a context
MAX_CONNECTIONS: Final = 1000

REQUEST_HEAD_SECONDS: Final = 20  # for a client to send a request line and headers
BODY_SECONDS: Final = 60  # for a client to send a body
STALL_SECONDS: Final = 60  # for a client to read anything of what waits for it
KEEP_ALIVE_SECONDS: Final = 60  # of a connection between two requests
SHUTDOWN_SECONDS: Final = 20  # for running requests to finish after the signal to stop


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """served_model_names: accepted in the field `model`; the first one stands in answers.

    api_key: what clients must send as a bearer token or x-api-key; None asks for nothing. allowed_origins: web origins
    whose pages may call the server, such as "https://example.org"; "*" is all. max_queue: requests that may wait while
    as many as the engine can hold run. ping_seconds: the longest silence of a stream.

    Raises ValueError for values that make no server.
    """

    served_model_names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    allowed_origins: tuple[str, ...] = ()
    max_queue: int = 64
    ping_seconds: float = 5.0

    def __post_init__(self) -> None:
        if not self.served_model_names or not all(self.served_model_names):
            raise ValueError("served_model_names must hold at least one name, and no empty ones")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}; it must be 0 (any free one) to 65535")
        if self.api_key is not None and (
            not self.api_key or not self.api_key.isascii() or self.api_key.strip() != self.api_key
        ):
            raise ValueError("api_key must be ASCII text without spaces around it, and not empty")
        if self.max_queue < 0:
            raise ValueError(f"max_queue is {self.max_queue}; it must be at least 0")
        if not 0 < self.ping_seconds <= 3600:
            raise ValueError(f"ping_seconds is {self.ping_seconds}; it must be above 0 and at most 3600")
