"""The row-wise pieces of the forward pass (docs/design/model.md, section 3) in float64."""

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def sigmoid(x: F64) -> F64:
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))  # 1 / (1 + exp(-x)) without its overflow


def silu(x: F64) -> F64:
    return x * sigmoid(x)


def norm(x: F64, gain: F64, eps: float = 1e-6) -> F64:
    """gain x / sqrt(mean(x²) + eps) over the last axis."""
    x = np.asarray(x, np.float64)
    return np.asarray(gain * x / np.sqrt((x**2).mean(-1, keepdims=True) + eps))


def l2_norm(x: F64) -> F64:
    """x / sqrt(sum(x²) + 1e-6) over the last axis: eps is added to the sum, not to the mean."""
    return np.asarray(x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6))


def gated_norm(o: F64, z: F64, gain: F64, eps: float = 1e-6) -> F64:
    """The delta net's output norm: o, z [..., dv], gain [dv]."""
    return norm(o, gain, eps) * silu(np.asarray(z, np.float64))


def softmax(x: F64) -> F64:
    """Over the last axis."""
    p = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(p / p.sum(-1, keepdims=True))


def swiglu(x: F64, gate: F64, up: F64) -> F64:
    """silu(gate x) · up x for rows x [..., H] and matrices [I, H]."""
    return silu(x @ gate.T) * (x @ up.T)
