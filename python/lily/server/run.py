"""One request on the engine: the stream of events that all routes read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from ..outputs import ChatChunk, Chunk, Timing
from ..progress import Progress, Started
from .errors import ApiError

Item = TypeVar("Item", Chunk, ChatChunk)
Item_co = TypeVar("Item_co", covariant=True)


class EngineStream(Protocol[Item_co]):
    """What Stream and ChatStream offer."""

    @property
    def prompt_tokens(self) -> int: ...

    def poll(self) -> Item_co | None: ...

    def on_progress(self, function: Callable[[Progress], None]) -> None: ...

    def close(self) -> None: ...


# Checks and starts a request; the function it is given wakes whoever waits for its events.
StartStream = Callable[[Callable[[], None]], EngineStream[Item]]


class Run(Generic[Item]):
    """The events of one request, in batches: everything that has come since the last one.

    prompt_tokens: known once it has started. cached_tokens: None until the device begins with the prompt.
    completion_tokens: as many as were read.
    """

    def __init__(self) -> None:
        self._stream: EngineStream[Item] | None = None
        self._ready = asyncio.Event()
        self._is_woken = False  # one wake serves all events up to the next look at the stream
        self._is_nudged = False
        self._abort: ApiError | None = None
        self._timing: Timing | None = None  # comes with the last item
        self._loop = asyncio.get_running_loop()
        self._received = perf_counter()
        self.prompt_tokens = 0
        self.cached_tokens: int | None = None
        self.completion_tokens = 0
        self.progress: Progress | None = None  # the latest, until somebody takes it
        self.started_seconds = 0.0  # from the arrival of the request, as the next two
        self.first_token_seconds: float | None = None
        self.last_token_seconds = 0.0

    @property
    def elapsed_seconds(self) -> float:
        return perf_counter() - self._received

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens behind the first one; 0 before there are two. Of a request that has ended, the engine's own."""
        if self._timing is not None:
            return self._timing.decode_tokens_per_second
        first = self.first_token_seconds
        seconds = 0.0 if first is None else self.last_token_seconds - first
        return (self.completion_tokens - 1) / seconds if seconds > 0 else 0.0

    async def start(self, start: StartStream[Item]) -> None:
        """Check and submit the request. Rendering, tokenising and grammars take milliseconds: in a pool thread.

        Raises what the engine raises for a request that cannot be served.
        """
        # If this await is cancelled, the stream that the pool still makes is dropped, which cancels it.
        self._stream = await asyncio.to_thread(start, self._wake)
        self._stream.on_progress(self._on_progress)
        self.prompt_tokens = self._stream.prompt_tokens

    async def next(self) -> list[Item]:
        """Wait for events; an empty list if there was progress only, or after `nudge`.

        The last item has a finish_reason. Raises what ended the request instead.
        """
        stream = self._stream
        assert stream is not None
        while True:
            self._ready.clear()
            self._is_woken = False
            if self._abort is not None:
                raise self._abort
            items = []
            before = self.progress
            while (item := stream.poll()) is not None:
                items.append(item)
                if item.finish_reason is not None:
                    break
            if items:
                self._count(len(items))
                self._timing = items[-1].timing
            if items or self.progress is not before or self._is_nudged:
                self._is_nudged = False
                return items
            await self._ready.wait()

    def nudge(self) -> None:
        """Let `next` return, from the event loop's thread."""
        self._is_nudged = True
        self._ready.set()

    def abort(self, error: ApiError) -> None:
        """Let `next` raise `error`, from the event loop's thread."""
        self._abort = error
        self._ready.set()

    def close(self) -> None:
        """Cancel the request at its next step if it still runs."""
        if self._stream is not None:
            self._stream.close()

    def _wake(self) -> None:
        """On the engine's thread. The flag is cleared before the stream is looked at, so no event is overlooked."""
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._ready.set)

    def _on_progress(self, progress: Progress) -> None:
        self.progress = progress
        if isinstance(progress, Started):
            self.cached_tokens = progress.done
            self.started_seconds = self.elapsed_seconds

    def _count(self, num_tokens: int) -> None:
        self.completion_tokens += num_tokens
        self.last_token_seconds = self.elapsed_seconds
        if self.first_token_seconds is None:
            self.first_token_seconds = self.last_token_seconds


AnyRun = Run[Chunk] | Run[ChatChunk]
