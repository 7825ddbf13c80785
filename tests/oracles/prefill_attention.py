"""Causal attention of a chunk over the keys of its timeline (docs/design/model.md, section 3.1)."""

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def attention(q: F64, gate: F64, k: F64, v: F64, position: int) -> F64:
    """q, gate [m, Hq, D] from `position` on, k, v [position + m, Hkv, D] -> gated output [m, Hq, D]."""
    m, heads, width = q.shape
    per_kv = heads // k.shape[1]
    k, v = k.repeat(per_kv, 1), v.repeat(per_kv, 1)
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(width)
    visible = np.arange(position + m) <= np.arange(position, position + m)[:, None]
    scores = np.where(visible, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    o = np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v)
    return o / (1.0 + np.exp(-gate))
