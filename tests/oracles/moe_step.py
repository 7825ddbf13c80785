"""Routing and experts, row by row (docs/design/model.md, section 3.3)."""

import numpy as np
from numpy.typing import NDArray

from tests.oracles.rows import F64, sigmoid, swiglu

Ids = NDArray[np.int64]


def route(logits: F64, k: int) -> tuple[Ids, F64]:
    """[R, E] -> ids [R, k], larger logit first, ties to the lower id, and their softmax over the k."""
    ids = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    chosen = np.take_along_axis(np.asarray(logits, np.float64), ids, -1)
    weights = np.exp(chosen - chosen.max(-1, keepdims=True))
    return ids, weights / weights.sum(-1, keepdims=True)


def up(x: F64, ids: Ids, gate_weights: F64, up_weights: F64) -> F64:
    """x [R, H], ids [R, k], weights [E, I, H] -> [R, k, I]."""
    return np.stack(
        [[swiglu(row, gate_weights[e], up_weights[e]) for e in of_row] for row, of_row in zip(x, ids, strict=True)]
    )


def down(h: F64, ids: Ids, weights: F64, experts: F64, hs: F64, shared: F64, shared_gate: F64) -> F64:
    """h [R, k, I], experts [E, H, I], hs [R, Is], shared [H, Is], shared_gate [R] -> what is added to x, [R, H]."""
    routed = np.stack(
        [sum(w * experts[e] @ h_e for h_e, e, w in zip(*row, strict=True)) for row in zip(h, ids, weights, strict=True)]
    )
    return routed + sigmoid(np.asarray(shared_gate, np.float64))[:, None] * (hs @ shared.T)
