"""What became of each request: one log line, the metrics, and the list of recent ones."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import time
from typing import Final

from .errors import CLIENT_CLOSED, ApiError
from .metrics import Metrics
from .run import AnyRun

_log: Final = logging.getLogger("lily.server")
_MAX_RECENT: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request that has ended. status: of HTTP, 499 if the client left. finish_reason: None if it was not finished.

    ended: seconds since 1970. first_token_seconds: None if there was no token.
    """

    id: str
    route: str
    status: int
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    first_token_seconds: float | None
    total_seconds: float
    tokens_per_second: float
    ended: float


class Ledger:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._recent: deque[Entry] = deque(maxlen=_MAX_RECENT)

    @property
    def recent(self) -> Sequence[Entry]:
        """The last requests, newest first."""
        return tuple(reversed(self._recent))

    def finish(self, id: str, route: str, run: AnyRun, finish_reason: str) -> None:
        """An answer was sent in full."""
        self._metrics.success.labels(route, finish_reason).inc()
        self._write(id, route, run, 200, finish_reason)

    def fail(self, id: str, route: str, run: AnyRun, error: ApiError) -> None:
        """A request was refused, failed, or its client left (status 499)."""
        if error.status == CLIENT_CLOSED:
            self._metrics.cancelled.labels(route).inc()
        else:
            self._metrics.error.labels(route, str(error.status)).inc()
        self._write(id, route, run, error.status, None, error.message)

    def _write(
        self, id: str, route: str, run: AnyRun, status: int, finish_reason: str | None, reason: str = ""
    ) -> None:
        first, total = run.first_token_seconds, run.elapsed_seconds
        entry = Entry(
            id=id,
            route=route,
            status=status,
            finish_reason=finish_reason,
            prompt_tokens=run.prompt_tokens,
            cached_tokens=run.cached_tokens or 0,
            completion_tokens=run.completion_tokens,
            first_token_seconds=first,
            total_seconds=total,
            tokens_per_second=run.tokens_per_second,
            ended=time(),
        )
        self._recent.append(entry)
        self._measure(entry)
        _log.info(
            "%s %s %d prompt=%d cached=%d completion=%d ttft=%s total=%.0fms %s finish=%s%s",
            *(id, route, status, entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens),
            *(
                "-" if first is None else f"{1000 * first:.0f}ms",
                1000 * total,
                f"{entry.tokens_per_second:.1f}tok/s" if entry.tokens_per_second > 0 else "-",
                finish_reason or "-",
            ),
            f" ({_one_line(reason)})" if reason else "",
        )

    def _measure(self, entry: Entry) -> None:
        metrics = self._metrics
        metrics.prompt_tokens.inc(entry.prompt_tokens)
        metrics.generation_tokens.inc(entry.completion_tokens)
        metrics.request_latency.observe(entry.total_seconds)
        if entry.first_token_seconds is not None:
            metrics.time_to_first_token.observe(entry.first_token_seconds)
        if entry.tokens_per_second > 0:
            metrics.inter_token_latency.observe(1 / entry.tokens_per_second)


def _one_line(text: str) -> str:
    """What a client sent must not write lines of its own into the log."""
    short = text if len(text) <= 300 else text[:300] + ".."
    return "".join(character if character.isprintable() else " " for character in short)
