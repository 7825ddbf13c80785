"""The row-wise pieces of the forward pass (docs/design/model.md, section 3) in float64."""

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


def sigmoid(x: F64) -> F64:
    return 1.0 / (1.0 + np.exp(-x))


def silu(x: F64) -> F64:
    return x * sigmoid(x)


def norm(x: F64, gain: F64, eps: float = 1e-6) -> F64:
    """gain x / sqrt(mean(x²) + eps) over the last axis."""
    x = np.asarray(x, np.float64)
    return np.asarray(gain * x / np.sqrt((x**2).mean(-1, keepdims=True) + eps))


def gated_norm(o: F64, z: F64, gain: F64) -> F64:
    """The delta net's output norm: o, z [..., dv], gain [dv]."""
    return norm(o, gain) * silu(np.asarray(z, np.float64))


def swiglu(x: F64, gate: F64, up: F64) -> F64:
    """silu(gate x) · up x for rows x [..., H] and matrices [I, H]."""
    return silu(x @ gate.T) * (x @ up.T)
