"""How the tokens of one request are drawn: the device's options for each, and the masks of its guide."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from . import _core
from .guide import Guide
from .params import ResolvedSampling

Mask = Callable[[], NDArray[np.uint32]]


class Drawing:
    """Used by one thread. stop_token_ids: not before min_tokens. forbidden_token_ids: never.

    guide: which tokens may be drawn; None if nothing but the sampling options decides.
    """

    def __init__(
        self,
        sampling: ResolvedSampling,
        seed: int,
        *,
        stop_token_ids: Collection[int],
        forbidden_token_ids: Collection[int],
        guide: Guide | None,
    ) -> None:
        bias = dict(sampling.given.logit_bias or {}) | dict.fromkeys(forbidden_token_ids, -math.inf)
        self._early = _options(sampling, seed, bias | dict.fromkeys(stop_token_ids, -math.inf))
        self._normal = _options(sampling, seed, bias)
        self._forced = _options(sampling, seed, {})
        self._min_tokens = sampling.given.min_tokens
        self._guide = guide

    def first(self, timeline: _core.Timeline) -> _core.Sampling:
        """Options for the token behind the prompt; its mask is set at once."""
        if self._guide is not None:
            timeline.set_token_mask(self._guide.mask() if self._guide.restricts else None)
        return self._after(0)

    def next(self, timeline: _core.Timeline, num_tokens: int) -> tuple[_core.Sampling, Mask | None]:
        """Options for the token behind `num_tokens` drawn ones, and the function that gives its mask, if it has one.

        That takes milliseconds at times, so it is called while the device computes the logits.
        """
        mask = None
        if self._guide is not None and self._guide.restricts:
            mask = self._guide.mask
        elif self._guide is not None:
            timeline.set_token_mask(None)
        return self._after(num_tokens), mask

    def _after(self, num_tokens: int) -> _core.Sampling:
        if self._guide is not None and self._guide.forced_token is not None:
            return self._forced
        return self._early if num_tokens < self._min_tokens else self._normal


def _options(sampling: ResolvedSampling, seed: int, bias: dict[int, float]) -> _core.Sampling:
    return _core.Sampling(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        seed=seed,
        logprobs=sampling.given.logprobs,
        bias=sorted(bias.items()),
    )
