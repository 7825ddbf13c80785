"""The engine of a server: loaded while the server already answers, closed when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import time
from typing import TypeVar

from ..engine import Engine
from ..errors import CancelledError, DeviceError
from .errors import ApiError, loading, stopping

Result = TypeVar("Result")

# Makes the engine; calls the function it is given with (done, total) bytes while it loads.
EngineMaker = Callable[[Callable[[int, int], None]], Engine]


class EngineHost:
    """Loads an engine in a pool thread. `engine` raises ApiError 503 before and after its life."""

    def __init__(self, make: EngineMaker) -> None:
        self._make = make
        self._engine: Engine | None = None
        self.created = int(time())
        self.loaded_bytes, self.total_bytes = 0, 0
        self.stopping = False
        self.failure: BaseException | None = None  # why loading failed, or the device error that ended the engine

    @property
    def engine(self) -> Engine:
        if self.stopping:
            raise stopping()
        if self.failure is not None:
            raise ApiError(503, f"the model does not run: {self.failure}", code="engine_failed")
        if self._engine is None:
            raise loading()
        return self._engine

    @property
    def status(self) -> str:
        """ "loading", "ready", "stopping" or "failed"."""
        if self.stopping:
            return "stopping"
        if self.failure is not None:
            return "failed"
        return "loading" if self._engine is None else "ready"

    @property
    def loading_failed(self) -> bool:
        return self.failure is not None and self._engine is None

    async def load(self) -> None:
        """Make the engine; `failure` says why not."""
        try:
            engine = await asyncio.to_thread(self._make, self._report)
        except Exception as error:
            if not self.stopping:
                self.failure = error
            return
        if self.stopping:
            await asyncio.to_thread(engine.close)
        else:
            self._engine = engine

    def _report(self, done: int, total: int) -> None:
        if self.stopping:
            raise CancelledError("the server was stopped while the model was loading")
        self.loaded_bytes, self.total_bytes = done, total

    def note(self, error: BaseException) -> None:
        """An error of a request: one that ends the engine ends the readiness too."""
        if isinstance(error, DeviceError) and error.fatal:
            self.failure = error

    async def close(self) -> None:
        """Close the engine after its running step. Loading ends at its next report."""
        self.stopping = True
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(engine.close)

    async def between_steps(self, read: Callable[[Engine], Result], timeout_seconds: float) -> Result | None:
        """What `read` returns on the engine's own thread, between two steps; None if that takes too long."""
        engine = self._engine
        if engine is None:
            return None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()

        def deliver(value: Result) -> None:
            if not future.done():
                future.set_result(value)

        def job() -> None:
            loop.call_soon_threadsafe(deliver, read(engine))

        engine._owner.post(job)
        try:
            return await asyncio.wait_for(future, timeout_seconds)
        except TimeoutError:
            return None
