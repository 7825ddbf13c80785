"""Log-probabilities of the tokens of a prompt."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from . import _core
from .guide import single_token
from .owner import Request, Steps
from .progress import Progress

_PROGRESS_TOKENS: Final = 64


def prompt_steps(
    request: Request[Progress, object],
    runtime: _core.Runtime,
    timeline: _core.Timeline,
    token_ids: NDArray[np.uint32],
    vocab_size: int,
    num_logprobs: int,
) -> Steps[Progress, list[_core.SampleResult]]:
    """Append all but the last of `token_ids` [n], one a step; returns a result for each token but the first.

    The sampler reports log-probabilities of what it draws, so each token of the prompt is drawn by a mask that allows
    it alone.
    """
    sampling = _core.Sampling(logprobs=num_logprobs)
    mask = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)
    results = []
    for count, (token_id, following) in enumerate(pairwise(token_ids.tolist()), start=1):
        timeline.set_token_mask(single_token(mask, following))
        (result,) = runtime.decode([timeline], [token_id], sampling=[sampling])
        assert result is not None
        results.append(result)
        if count % _PROGRESS_TOKENS == 0:
            request.push(Progress(count, len(token_ids)))
        yield None
    timeline.set_token_mask(None)
    return results
