"""Gated DeltaNet of one timeline, token by token, as its definition reads (docs/design/model.md, section 3.2)."""

from dataclasses import dataclass

import numpy as np

from tests.oracles.rows import F64, sigmoid, silu


@dataclass
class DeltaNet:
    """One layer and one timeline: `step` takes a token's projections and updates both states in place."""

    conv_w: F64  # [C, 4]
    a_log: F64  # [Hv]
    dt_bias: F64  # [Hv]
    conv_state: F64  # [3, C]
    recurrent_state: F64  # [Hv, dk, dv]

    def step(self, qkv: F64, b: F64, a: F64) -> F64:
        """qkv [C], b and a [Hv] -> o [Hv, dv]."""
        heads, dk, dv = self.recurrent_state.shape
        window = np.vstack([self.conv_state, qkv])
        self.conv_state[:] = window[1:]
        y = silu((window * self.conv_w.T).sum(0))
        key_heads = (len(qkv) - heads * dv) // (2 * dk)
        q, k = y[: 2 * key_heads * dk].reshape(2, key_heads, dk)
        v = y[2 * key_heads * dk :].reshape(heads, dv)
        q = q / np.sqrt((q**2).sum(-1, keepdims=True) + 1e-6) * dk**-0.5
        k = k / np.sqrt((k**2).sum(-1, keepdims=True) + 1e-6)
        o = np.empty((heads, dv))
        for h in range(heads):
            q_h, k_h, state = q[h // (heads // key_heads)], k[h // (heads // key_heads)], self.recurrent_state[h]
            state *= np.exp(-np.exp(self.a_log[h]) * np.logaddexp(0, a[h] + self.dt_bias[h]))
            delta = sigmoid(b[h]) * (v[h] - state.T @ k_h)
            state += np.outer(k_h, delta)
            o[h] = state.T @ q_h
        return o
