"""The MoE block of a chunk: routing, the plan of the grouped products, the sum (docs/design/model.md, section 3.3)."""

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
U32 = NDArray[np.uint32]
BLOCK = 32
NO_EXPERT = 0xFFFFFFFF


def swiglu(y: F64, gate: F64, up: F64) -> F64:
    """y [m, K], gate and up [N, K] -> silu(y gate^T) * (y up^T), [m, N]."""
    z = y @ gate.T
    return z / (1.0 + np.exp(-z)) * (y @ up.T)


def topk(logits: F64, k: int) -> tuple[U32, F64]:
    """logits [m, E] -> ids [m, k], larger logits first, ties to the lower id, and softmax weights over the chosen."""
    ids = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    chosen = np.take_along_axis(logits, ids, -1)
    weights = np.exp(chosen - chosen.max(-1, keepdims=True))
    return ids.astype(np.uint32), weights / weights.sum(-1, keepdims=True)


def plan(topk_ids: U32, experts: int) -> tuple[U32, list[tuple[int, int, int]]]:
    """ids [m, k] -> assignments by expert, and blocks (expert, begin, end) with the sentinels that fill them up."""
    flat = topk_ids.reshape(-1)
    order = np.argsort(flat, kind="stable").astype(np.uint32)
    blocks, begin = [], 0
    for expert in range(experts):
        end = begin + int((flat == expert).sum())
        blocks += [(expert, at, min(at + BLOCK, end)) for at in range(begin, end, BLOCK)]
        begin = end
    max_blocks = min(experts, flat.size) + flat.size // BLOCK
    return order, blocks + [(NO_EXPERT, flat.size, flat.size)] * (max_blocks - len(blocks))


def combine(x: F64, d: F64, topk_weights: F64, s: F64, shared_gate: F64) -> F64:
    """x, s [m, H], d [m, k, H], topk_weights [m, k], shared_gate [m] -> x plus the block's output."""
    return x + np.einsum("mk,mkh->mh", topk_weights, d) + s / (1.0 + np.exp(-shared_gate))[:, None]
