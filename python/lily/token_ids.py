"""Token ids that callers give, checked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def flat_integers(token_ids: Sequence[int]) -> NDArray[np.integer]:
    """As an array [n]. Raises TypeError for anything but a flat sequence of integers."""
    ids = np.asarray(token_ids)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        found = f"{type(token_ids).__name__} of {ids.dtype}" if ids.ndim else type(token_ids).__name__
        raise TypeError(f"token ids must be a flat sequence of integers, not {found} with {ids.ndim} dimensions")
    return ids


def check_token_ids(token_ids: Sequence[int], vocab_size: int) -> NDArray[np.uint32]:
    """As uint32 [n]. Raises ValueError, naming the place, for one outside 0 .. vocab_size - 1, TypeError as above."""
    ids = flat_integers(token_ids)
    if ids.size and (ids.min() < 0 or ids.max() >= vocab_size):
        place = int(np.flatnonzero((ids < 0) | (ids >= vocab_size))[0])
        raise ValueError(f"token id {ids[place]} at place {place} is outside 0 .. {vocab_size - 1} (vocab_size)")
    return np.ascontiguousarray(ids, dtype=np.uint32)
