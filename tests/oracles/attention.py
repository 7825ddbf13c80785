"""Attention between its projections (docs/design/model.md, section 3.1)."""

import numpy as np
from numpy.typing import ArrayLike

from tests.oracles.rows import F64, sigmoid, softmax


def rope(x: F64, positions: ArrayLike, theta: float, rotary_dim: int) -> F64:
    """Rotates the pairs (j, j + rotary_dim / 2) of x [..., heads, D] at positions [...]."""
    half = rotary_dim // 2
    angle = np.asarray(positions)[..., None, None] * theta ** (-np.arange(half) / half)
    low, high, rest = np.split(x, [half, rotary_dim], -1)
    turned = [low * np.cos(angle) - high * np.sin(angle), high * np.cos(angle) + low * np.sin(angle)]
    return np.concatenate([*turned, rest], -1)


def sums(q: F64, k: F64, v: F64) -> tuple[F64, F64]:
    """Not causal: q [m, Hq, D], k, v [n, Hkv, D] -> average of v [m, Hq, D], log of the sum of exp(score) [m, Hq]."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = np.einsum("ihd,jhd->ihj", q, k) / np.sqrt(q.shape[-1])
    largest = scores.max(-1)
    return np.einsum("ihj,jhd->ihd", softmax(scores), v), largest + np.log(np.exp(scores - largest[..., None]).sum(-1))


def attend(q: F64, gate: F64, k: F64, v: F64, position: int) -> F64:
    """Causal: q, gate [m, Hq, D] from `position` on, k, v [position + m, Hkv, D] -> gated output [m, Hq, D]."""
    q, gate, k, v = (np.asarray(x, np.float64) for x in (q, gate, k, v))
    m, heads, width = q.shape
    k, v = (np.repeat(x, heads // x.shape[1], 1) for x in (k, v))  # query head h reads KV head h // (Hq / Hkv)
    visible = np.arange(position + m) <= np.arange(position, position + m)[:, None]
    scores = np.where(visible, np.einsum("ihd,jhd->hij", q, k) / np.sqrt(width), -np.inf)
    return np.asarray(np.einsum("hij,jhd->ihd", softmax(scores), v) * sigmoid(gate))
