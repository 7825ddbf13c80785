"""Gated DeltaNet between its projections, for a chunk of one timeline (docs/design/model.md, section 3.2)."""

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
CHUNK = 64


def sigmoid(x: F64) -> F64:
    return 1.0 / (1.0 + np.exp(-x))


def silu(x: F64) -> F64:
    return x * sigmoid(x)


def convolve(qkv: F64, history: F64, conv_w: F64) -> F64:
    """qkv [m, C], history [3, C] (the rows before, oldest first), conv_w [C, 4] -> silu of the convolution, [m, C]."""
    rows = np.concatenate([history, qkv])
    m = len(qkv)
    return silu(sum(conv_w[:, j] * rows[j : j + m] for j in range(4)))


def l2_norm(x: F64) -> F64:
    return x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)


def gates(b: F64, a: F64, a_log: F64, dt_bias: F64) -> tuple[F64, F64]:
    """b, a [m, Hv] -> g (log decay) and beta, [m, Hv]."""
    return -np.exp(a_log) * np.logaddexp(0.0, a + dt_bias), sigmoid(b)


def sequential(q: F64, k: F64, v: F64, g: F64, beta: F64, state: F64) -> tuple[F64, F64]:
    """Token by token: q, k [m, Hk, dk], v [m, Hv, dv], g, beta [m, Hv], state [Hv, dk, dv] -> o, state."""
    per_key = v.shape[1] // k.shape[1]
    q, k, state = q.repeat(per_key, 1), k.repeat(per_key, 1), state.copy()
    o = np.empty_like(v)
    for t in range(len(v)):
        state *= np.exp(g[t])[:, None, None]
        d = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state += k[t][:, :, None] * d[:, None, :]
        o[t] = np.einsum("hkv,hk->hv", state, q[t])
    return o, state


def chunk_parts(q: F64, k: F64, v: F64, g: F64, beta: F64) -> tuple[F64, F64, F64]:
    """The state-free part of the chunked form -> u [m, Hv, dv], w [m, Hv, dk], qk [m, Hv, 64]."""
    m, heads = g.shape
    per_key = heads // k.shape[1]
    u, w = np.empty_like(v), np.empty((m, heads, k.shape[2]))
    qk = np.zeros((m, heads, CHUNK))
    for begin in range(0, m, CHUNK):
        rows = slice(begin, min(begin + CHUNK, m))
        for h in range(heads):
            keys, b, total = k[rows, h // per_key], beta[rows, h, None], np.cumsum(g[rows, h])
            n = len(keys)
            mask = np.exp(np.minimum(total[:, None] - total, 0.0)) * np.tri(n)
            a = b * mask * (keys @ keys.T) * np.tri(n, k=-1)
            inverse = np.linalg.inv(np.eye(n) + a)
            u[rows, h] = inverse @ (b * v[rows, h])
            w[rows, h] = inverse @ (b * np.exp(total)[:, None] * keys)
            qk[rows, h, :n] = mask * (q[rows, h // per_key] @ keys.T)
    return u, w, qk


def gated_norm(o: F64, z: F64, norm: F64, eps: float) -> F64:
    """o, z [m, Hv, dv], norm [dv] -> [m, Hv dv]."""
    return (norm * o / np.sqrt((o**2).mean(-1, keepdims=True) + eps) * silu(z)).reshape(len(o), -1)
