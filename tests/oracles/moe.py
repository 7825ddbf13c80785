"""The MoE block: routing, the plan of the grouped products, experts, the sum (docs/design/model.md, section 3.3)."""

import numpy as np
from numpy.typing import NDArray

from tests.oracles.rows import F64, sigmoid, softmax, swiglu

Ids = NDArray[np.int64]
BLOCK = 32
NO_EXPERT = 0xFFFFFFFF


def topk(logits: F64, k: int) -> tuple[Ids, F64]:
    """logits [m, E] -> ids [m, k], larger logits first, ties to the lower id, and softmax weights over the chosen."""
    ids = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    return ids, softmax(np.take_along_axis(np.asarray(logits, np.float64), ids, -1))


def plan(topk_ids: NDArray[np.uint32], experts: int) -> tuple[NDArray[np.uint32], list[tuple[int, int, int]]]:
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


def up(x: F64, ids: Ids, gate_weights: F64, up_weights: F64) -> F64:
    """x [m, H], ids [m, k], weights [E, I, H] -> h [m, k, I]."""
    return np.stack(
        [[swiglu(row, gate_weights[e], up_weights[e]) for e in of_row] for row, of_row in zip(x, ids, strict=True)]
    )


def down(h: F64, ids: Ids, weights: F64) -> F64:
    """h [m, k, I], ids [m, k], weights [E, H, I] -> d [m, k, H]."""
    return np.stack([[weights[e] @ h_e for h_e, e in zip(*row, strict=True)] for row in zip(h, ids, strict=True)])


def combine(d: F64, topk_weights: F64, s: F64, shared_gate: F64) -> F64:
    """d [m, k, H], topk_weights [m, k], s [m, H], shared_gate [m] -> what the block adds to x, [m, H]."""
    return np.asarray(
        np.einsum("mk,mkh->mh", topk_weights, d) + sigmoid(np.asarray(shared_gate, np.float64))[:, None] * s
    )
