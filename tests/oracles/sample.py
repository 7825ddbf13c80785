"""Sampling with vLLM's semantics, by sorting the whole vocabulary (order of the steps: shaders/lily_args.h)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.oracles.rows import F64

MASK = 0xFFFFFFFF


def philox4x32(key: Sequence[int], counter: Sequence[int]) -> list[int]:
    """Philox 4x32-10 (Salmon et al. 2011)."""
    k, c = list(key), list(counter)
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) ^ c[1] ^ k[0], b & MASK, (a >> 32) ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    bias: Sequence[tuple[int, float]] = ()
    allowed: NDArray[np.bool_] | None = None
    in_prompt: frozenset[int] = frozenset()
    in_output: Mapping[int, int] = field(default_factory=dict)


def adjust(logits: F64, s: Sampling) -> F64:
    """Bias, mask, penalties."""
    logits = np.array(logits, np.float64)
    for token, value in s.bias:
        logits[token] += value
    if s.allowed is not None:
        logits[~s.allowed] = -np.inf
    for token in s.in_prompt | set(s.in_output):
        repetition = s.repetition_penalty
        logits[token] = logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
    for token, count in s.in_output.items():
        logits[token] -= s.frequency_penalty * count + s.presence_penalty
    return logits


def survivors(adjusted: F64, s: Sampling) -> tuple[NDArray[np.int64], F64]:
    """Token ids that can be drawn, most probable first, and their probabilities (not normalised)."""
    order = np.argsort(-adjusted, kind="stable")
    order = order[adjusted[order] > -np.inf]
    p = np.exp((adjusted[order] - adjusted[order[0]]) / s.temperature)
    keep = p >= s.min_p
    order, p = order[keep], p[keep]
    if s.top_k:
        order, p = order[: s.top_k], p[: s.top_k]
    if s.top_p < 1:
        count = np.searchsorted(np.cumsum(p), s.top_p * p.sum()) + 1
        order, p = order[:count], p[:count]
    return order, p


def draw(logits: F64, s: Sampling, position: int) -> int | None:
    """The token that follows `position`; None when nothing is allowed."""
    adjusted = adjust(logits, s)
    if not (adjusted > -np.inf).any():
        return None
    if s.temperature == 0:
        return int(np.argmax(adjusted))
    order, p = survivors(adjusted, s)
    by_id = np.argsort(order)
    u = philox4x32([s.seed & MASK, s.seed >> 32], [position + 1, 0, 0, 0])[0] / 2**32
    cumulative = np.cumsum(p[by_id])
    return int(order[by_id][np.searchsorted(cumulative, u * cumulative[-1], side="right")])


def log_softmax(logits: F64) -> F64:
    logits = np.asarray(logits, np.float64)
    return np.asarray(logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()))
