"""Gated DeltaNet between its projections (docs/design/model.md, section 3.2)."""

from dataclasses import dataclass

import numpy as np

from tests.oracles.rows import F64, l2_norm, sigmoid, silu

CHUNK = 64  # tokens per chunk of the kernels


def convolve(qkv: F64, history: F64, conv_w: F64) -> F64:
    """qkv [m, C], history [3, C] (the rows before, oldest first), conv_w [C, 4] -> silu of the convolution, [m, C]."""
    rows = np.concatenate([history, qkv])
    return silu(sum((conv_w[:, j] * rows[j : j + len(qkv)] for j in range(conv_w.shape[1])), np.zeros_like(qkv)))


def gates(b: F64, a: F64, a_log: F64, dt_bias: F64) -> tuple[F64, F64]:
    """b, a [m, Hv] -> g (log decay) and beta, [m, Hv]."""
    return -np.exp(a_log) * np.logaddexp(0.0, a + dt_bias), sigmoid(b)


def sequential(q: F64, k: F64, v: F64, g: F64, beta: F64, state: F64) -> tuple[F64, F64]:
    """Token by token: q, k [m, Hk, dk], v [m, Hv, dv], g, beta [m, Hv], state [Hv, dk, dv] -> o, state."""
    per_key = v.shape[1] // k.shape[1]  # value head h reads key head h // (Hv / Hk)
    q, k, state = q.repeat(per_key, 1), k.repeat(per_key, 1), state.copy()
    o = np.empty_like(v)
    for t in range(len(v)):
        state *= np.exp(g[t])[:, None, None]
        d = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state += k[t][:, :, None] * d[:, None, :]
        o[t] = np.einsum("hkv,hk->hv", state, q[t])
    return o, state


def chunk_parts(q: F64, k: F64, v: F64, g: F64, beta: F64, chunk: int = CHUNK) -> tuple[F64, F64, F64]:
    """The state-free part of the chunked form -> u [m, Hv, dv], w [m, Hv, dk], qk [m, Hv, chunk]."""
    m, heads = g.shape
    per_key = heads // k.shape[1]
    u, w = np.empty_like(v), np.empty((m, heads, k.shape[2]))
    qk = np.zeros((m, heads, chunk))
    for begin in range(0, m, chunk):
        rows = slice(begin, min(begin + chunk, m))
        for h in range(heads):
            keys, b, total = k[rows, h // per_key], beta[rows, h, None], np.cumsum(g[rows, h])
            n = len(keys)
            mask = np.exp(np.minimum(total[:, None] - total, 0.0)) * np.tri(n)  # exp(G_i - G_j) for j <= i
            system = np.eye(n) + b * mask * (keys @ keys.T) * np.tri(n, k=-1)  # unit lower triangular
            u[rows, h] = np.linalg.solve(system, b * v[rows, h])
            w[rows, h] = np.linalg.solve(system, b * np.exp(total)[:, None] * keys)
            qk[rows, h, :n] = mask * (q[rows, h // per_key] @ keys.T)
    return u, w, qk


def chunked(q: F64, k: F64, v: F64, g: F64, beta: F64, state: F64, chunk: int = CHUNK) -> tuple[F64, F64]:
    """The same map as `sequential`, `chunk` tokens at a time."""
    m, heads = g.shape
    per_key = heads // k.shape[1]
    u, w, qk = chunk_parts(q, k, v, g, beta, chunk)
    o, state = np.empty_like(v), state.copy()
    for begin in range(0, m, chunk):
        rows = slice(begin, min(begin + chunk, m))
        for h in range(heads):
            queries, keys, total = q[rows, h // per_key], k[rows, h // per_key], np.cumsum(g[rows, h])[:, None]
            d = u[rows, h] - w[rows, h] @ state[h]  # row i: what token i adds to the state
            o[rows, h] = (np.exp(total) * queries) @ state[h] + qk[rows, h, : len(d)] @ d
            state[h] = np.exp(total[-1]) * state[h] + (np.exp(total[-1] - total) * keys).T @ d
    return o, state


@dataclass
class DeltaNet:
    """One layer and one timeline; `run` and `step` update both states in place."""

    conv_w: F64  # [C, 4]
    a_log: F64  # [Hv]
    dt_bias: F64  # [Hv]
    conv_state: F64  # [3, C]
    recurrent_state: F64  # [Hv, dk, dv]

    def run(self, qkv: F64, b: F64, a: F64, chunk: int = 0) -> F64:
        """qkv [m, C], b and a [m, Hv] -> o [m, Hv, dv]; token by token, or `chunk` tokens at a time."""
        m, (heads, dk, dv) = len(qkv), self.recurrent_state.shape
        key_dim = (qkv.shape[1] - heads * dv) // 2
        q, k, v = np.split(convolve(qkv, self.conv_state, self.conv_w), [key_dim, 2 * key_dim], -1)
        q, k = l2_norm(q.reshape(m, -1, dk)) * dk**-0.5, l2_norm(k.reshape(m, -1, dk))
        inputs = q, k, v.reshape(m, heads, dv), *gates(b, a, self.a_log, self.dt_bias), self.recurrent_state
        o, self.recurrent_state[:] = chunked(*inputs, chunk) if chunk else sequential(*inputs)
        self.conv_state[:] = np.concatenate([self.conv_state, qkv])[m:]
        return o

    def step(self, qkv: F64, b: F64, a: F64) -> F64:
        """One token: qkv [C], b and a [Hv] -> o [Hv, dv]."""
        return np.asarray(self.run(qkv[None], b[None], a[None])[0])
