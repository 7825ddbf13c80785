"""An engine that steps when a test lets it: what shall happen while a request runs then does, on any slow machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lily import Engine

PATIENCE = 300  # seconds until something counts as hanging, on a slow machine that others use as well


def wait_until(condition: Callable[[], bool], what: str = "the condition") -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true in time"
        time.sleep(0.005)


class Gate:
    """The runtime of an engine; each of its steps waits for a permit.

    chunks: lengths of the prompts' chunks. num_tokens: decode steps that passed. is_waiting: a step stands at the gate.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._permits = threading.Semaphore(0)
        self._is_open = False
        self.chunks: list[int] = []
        self.num_tokens = 0
        self.is_waiting = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def allow(self, steps: int) -> None:
        self._permits.release(steps)

    def open(self) -> None:
        """Every step from now on."""
        self._is_open = True
        self._permits.release()

    def prefill(self, timeline: Any, token_ids: Sequence[int], **options: Any) -> Any:
        self._pass()
        self.chunks.append(len(token_ids))
        return self._runtime.prefill(timeline, token_ids, **options)

    def decode(self, timelines: Sequence[Any], *arguments: Any, **options: Any) -> Any:
        self._pass()
        self.num_tokens += 1
        return self._runtime.decode(timelines, *arguments, **options)

    def _pass(self) -> None:
        if not self._is_open:
            self.is_waiting = True
            self._permits.acquire()
            self.is_waiting = False


@contextmanager
def gated(engine: Engine) -> Iterator[Gate]:
    runtime = engine._runtime
    gate = Gate(runtime)
    engine._runtime = gate  # type: ignore[assignment]
    try:
        yield gate
    finally:
        gate.open()
        engine._runtime = runtime
