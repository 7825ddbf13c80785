"""Streams for event loops: the same requests, awaited instead of waited for. No thread waits for a request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from .errors import CancelledError
from .keywords import names_nearest_keyword

Item_co = TypeVar("Item_co", covariant=True)
Result_co = TypeVar("Result_co", covariant=True)
Item = TypeVar("Item")
Result = TypeVar("Result")


class PolledStream(Protocol[Item_co, Result_co]):
    """What Stream and ChatStream offer an event loop."""

    def poll(self) -> Item_co | None: ...

    def result(self) -> Result_co: ...

    def close(self) -> None: ...


@names_nearest_keyword
class AsyncStream(AsyncIterator[Item], Generic[Item, Result]):
    """Chunks of one request, one per token. The request starts with the first `anext`, which checks it as well.

    Leaving the iteration early needs `aclose`, or `async with`; dropping the stream does it too, once it is collected.
    Cancelling the task that waits, as `asyncio.timeout` does, cancels the request at its next step;
    asyncio.CancelledError passes through unchanged.

    start: makes the stream; it gets the function to call, from any thread, when there is something to poll.
    """

    def __init__(self, start: Callable[[Callable[[], None]], PolledStream[Item, Result]]) -> None:
        self._start = start
        self._stream: PolledStream[Item, Result] | None = None
        self._ready = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> AsyncStream[Item, Result]:
        return self

    async def __anext__(self) -> Item:
        if self._closed:
            raise StopAsyncIteration
        try:
            if self._stream is None:
                # Rendering, tokenising and compiling a grammar take milliseconds: in a pool thread, not in the loop.
                # If this await is cancelled, the stream that the pool still makes is dropped, which cancels it.
                # In a list: futures would hold it in a cycle, and dropped it would go on until that is collected.
                made: list[PolledStream[Item, Result]] = []
                start, wake = self._start, _waker(self._ready)
                await asyncio.to_thread(lambda: made.append(start(wake)))
                self._stream = made.pop()
            stream = self._stream
            while True:
                self._ready.clear()
                item = stream.poll()
                if item is not None:
                    return item
                await self._ready.wait()
        except StopIteration:
            self._close()
            raise StopAsyncIteration from None
        except BaseException:
            self._close()
            raise

    async def result(self) -> Result:
        """The whole completion or answer; waits for what has not been read. Raises what the request raises,
        CancelledError if the stream was closed before its end."""
        async for _ in self:
            pass
        if self._stream is None:
            raise CancelledError("the stream was closed before it started: it has no result")
        return self._stream.result()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "not started"
        return f"AsyncStream({state})" if self._stream is None else f"Async{self._stream!r}"

    async def aclose(self) -> None:
        """Cancel the request if it still runs. May be called twice."""
        self._close()

    def _close(self) -> None:
        self._closed = True
        if self._stream is not None:
            self._stream.close()
        self._ready.set()  # a task that waits in `anext` sees the end

    async def __aenter__(self) -> AsyncStream[Item, Result]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()


def _waker(ready: asyncio.Event) -> Callable[[], None]:
    """Sets `ready` from any thread. It does not hold the stream, which could otherwise not be collected."""
    loop = asyncio.get_running_loop()

    def wake() -> None:
        loop.call_soon_threadsafe(ready.set)

    return wake
