"""A runtime that draws a given sequence of tokens: for what a real model cannot be made to say on demand."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lily import _core


class Drawn:
    def __init__(self, token_id: int) -> None:
        self.token_id = token_id
        self.logprob = -0.25
        self.top_logprobs = [(token_id, -0.25), (0, -2.0)]


class ScriptedTimeline:
    def __init__(self) -> None:
        self.num_tokens = 0
        self.drawn = 0
        self.closed = False
        self.counts: list[int] | None = None

    def set_token_counts(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> None:
        self.counts = list(prompt_ids)

    def reserve(self, num_tokens: int) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class ScriptedRuntime:
    """Draws script[0], script[1], .. on each timeline. Each step waits for a permit, if `gate` is set."""

    max_chunk_tokens = 4
    max_context = 64

    def __init__(self, script: Sequence[int], *, gate: threading.Semaphore | None = None) -> None:
        self.script = list(script)
        self.gate = gate
        self.timelines: list[ScriptedTimeline] = []
        self.chunks: list[list[int]] = []
        self.error_at: int | None = None

    def native(self) -> _core.Runtime:
        return cast(_core.Runtime, self)

    def timeline(self) -> ScriptedTimeline:
        self.timelines.append(ScriptedTimeline())
        return self.timelines[-1]

    def prefill(
        self,
        timeline: ScriptedTimeline,
        token_ids: NDArray[np.uint32],
        *,
        wants_logits: bool,
        sampling: object = None,
        cancel: object = None,
    ) -> Drawn | None:
        if self.gate is not None:
            self.gate.acquire()
        self.chunks.append(token_ids.tolist())
        timeline.num_tokens += len(token_ids)
        return self._draw(timeline) if sampling is not None else None

    def decode(
        self,
        timelines: Sequence[ScriptedTimeline],
        token_ids: Sequence[int] | None,
        *,
        sampling: Sequence[object],
        masks: Sequence[object],
    ) -> list[Drawn]:
        if self.gate is not None:
            self.gate.acquire()
        (timeline,) = timelines
        timeline.num_tokens += 1
        return [self._draw(timeline)]

    def _draw(self, timeline: ScriptedTimeline) -> Drawn:
        if timeline.drawn == self.error_at:
            raise ValueError("scripted error")
        timeline.drawn += 1
        return Drawn(self.script[timeline.drawn - 1])
