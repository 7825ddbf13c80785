"""Attention of single rows over their cached keys (docs/design/model.md, section 3.1)."""

import numpy as np

from tests.oracles.rows import F64, sigmoid


def rope(x: F64, position: int, theta: float, rotary_dim: int) -> F64:
    """Rotates the pairs (j, j + rotary_dim / 2) of x [heads, D]."""
    half = rotary_dim // 2
    angle = position * theta ** (-np.arange(half) * 2.0 / rotary_dim)
    low, high = x[:, :half], x[:, half:rotary_dim]
    turned = [low * np.cos(angle) - high * np.sin(angle), high * np.cos(angle) + low * np.sin(angle)]
    return np.concatenate([*turned, x[:, rotary_dim:]], -1)


def attend(q: F64, k: F64, v: F64, gate: F64) -> F64:
    """One query row: q, gate [Hq, D], k and v [n, Hkv, D] of all positions that it sees -> gated output [Hq, D]."""
    q, k, v, gate = (np.asarray(x, np.float64) for x in (q, k, v, gate))
    out = np.empty_like(q)
    for h, q_h in enumerate(q):
        of_head = h // (len(q) // k.shape[1])
        scores = k[:, of_head] @ q_h / np.sqrt(q.shape[1])
        p = np.exp(scores - scores.max())
        out[h] = p @ v[:, of_head] / p.sum()
    return out * sigmoid(gate)
