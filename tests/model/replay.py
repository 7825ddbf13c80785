"""A runtime that remembers how each state came about, so that a twin can compute it again, step by step, to the bit.

A fresh computation cuts its chunks elsewhere and so rounds otherwise, and where two experts are near each other it may
choose another one: it can only be compared within a gate. The same steps from an empty timeline leave no such room.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from lily import _core

# A chunk of a prefill and whether its logits were computed; or a decoded token, its row in the step, and the
# lengths of all rows.
Steps = tuple[tuple[tuple[int, ...], bool | tuple[int, tuple[int, ...]]], ...]


class TracedSnapshot:
    def __init__(self, snapshot: _core.Snapshot, timeline: "TracedTimeline") -> None:
        self.snapshot, self.steps, self._book = snapshot, timeline.steps, timeline.book

    def read_state(self):
        return self._book.note(self.snapshot.read_state(), self.steps)

    def __getattr__(self, name):
        return getattr(self.snapshot, name)


class TracedTimeline:
    def __init__(self, timeline: _core.Timeline, book: "Book", steps: Steps = ()) -> None:
        self.timeline, self.book, self.steps = timeline, book, steps

    def reset(self) -> None:
        self.timeline.reset()
        self.steps = ()

    def fork(self) -> "TracedTimeline":
        return TracedTimeline(self.timeline.fork(), self.book, self.steps)

    def snapshot(self) -> TracedSnapshot:
        return TracedSnapshot(self.timeline.snapshot(), self)

    def check_restart(self, num_tokens: int, snapshot: TracedSnapshot | None = None) -> None:
        self.timeline.check_restart(num_tokens, snapshot and snapshot.snapshot)

    def restore(self, snapshot: TracedSnapshot) -> None:
        self.timeline.restore(snapshot.snapshot)
        self.steps = snapshot.steps

    def read_state(self):
        return self.book.note(self.timeline.read_state(), self.steps)

    def load_state(self, num_tokens, recurrent_state, conv_state, kv, logits=None) -> None:
        steps = self.book.steps_of((recurrent_state, conv_state, kv))
        self.steps = ()
        self.timeline.load_state(num_tokens, recurrent_state, conv_state, kv, logits)
        self.steps = steps

    def __getattr__(self, name):
        return getattr(self.timeline, name)


class Book:
    """The steps behind each state that left the device, by its bytes: what comes back was not changed on the way."""

    def __init__(self) -> None:
        self._steps: dict[bytes, Steps] = {}

    def note(self, state, steps: Steps):
        self._steps[_digest(state)] = steps
        return state

    def steps_of(self, state) -> Steps:
        return self._steps[_digest(state)]


class TracedRuntime:
    """A runtime whose timelines have their `steps`. before_prefill is called with the timeline and the cancel flag."""

    def __init__(self, runtime: _core.Runtime) -> None:
        self.runtime, self._book = runtime, Book()
        self.before_prefill: Callable[[TracedTimeline, _core.CancelFlag | None], None] | None = None

    def timeline(self) -> TracedTimeline:
        return TracedTimeline(self.runtime.timeline(), self._book)

    def prefill(self, timeline, token_ids, *, wants_logits, sampling=None, cancel=None):
        if self.before_prefill is not None:
            self.before_prefill(timeline, cancel)
        drawn = self.runtime.prefill(
            timeline.timeline, token_ids, wants_logits=wants_logits, sampling=sampling, cancel=cancel
        )
        timeline.steps += ((tuple(map(int, token_ids)), wants_logits),)
        return drawn

    def decode(self, timelines: Sequence[TracedTimeline], token_ids):
        lengths = tuple(timeline.num_tokens for timeline in timelines)
        drawn = self.runtime.decode([timeline.timeline for timeline in timelines], token_ids)
        for row, (timeline, token_id) in enumerate(zip(timelines, token_ids, strict=True)):
            timeline.steps += (((int(token_id),), (row, lengths)),)
        return drawn

    def __getattr__(self, name):
        return getattr(self.runtime, name)


def replay(runtime: _core.Runtime, steps: Steps) -> np.ndarray:
    """Logits after `steps` on a timeline that nothing else touched; rows beside it have the lengths that they had."""
    timeline = runtime.timeline()
    try:
        for token_ids, how in steps:
            if isinstance(how, bool):
                runtime.prefill(timeline, np.array(token_ids, np.uint32), wants_logits=how)
            else:
                decode_beside(runtime, timeline, token_ids[0], *how)
        return timeline.logits.copy()
    finally:
        timeline.close()


def decode_beside(runtime: _core.Runtime, timeline: _core.Timeline, token_id: int, row: int, lengths: tuple[int, ...]):
    rows = [timeline if n == row else runtime.timeline() for n in range(len(lengths))]
    for other, length in zip(rows, lengths, strict=True):
        for begin in range(0, length if other is not timeline else 0, runtime.max_chunk_tokens):
            chunk = np.zeros(min(runtime.max_chunk_tokens, length - begin), np.uint32)
            runtime.prefill(other, chunk, wants_logits=False)
    runtime.decode(rows, [token_id if other is timeline else 0 for other in rows])
    for other in rows:
        if other is not timeline:
            other.close()


def _digest(state) -> bytes:
    recurrent_state, conv_state, kv = state
    digest = hashlib.sha256()
    for array in (recurrent_state, conv_state, *kv):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
