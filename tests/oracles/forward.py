"""Reference forward pass of both model families in float64, from the published formulas; slow and plain on purpose.

Reads a checkpoint folder in the MLX layout, any bits and pair types that lily supports. Formulas: Gated DeltaNet
(arXiv:2412.06464), the chunked WY / UT form (arXiv:2406.06484), and the Qwen3-Next and Qwen3.5 model cards and configs.
Every position starts from an empty state. Shapes: T tokens, H hidden, Hq / Hkv heads, Hk / Hv delta-net heads.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Trace = Callable[[str, NDArray[Any]], None]

DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "U32": "<u4"}
HEAD_ROWS = 16384  # rows of lm_head at a time: the whole matrix of a large model would need gigabytes in float64


def no_trace(name: str, array: NDArray[Any]) -> None:
    """Keeps nothing."""


class Checkpoint:
    """Lazy reader of a folder of safetensors files: matrices come out dequantised, everything in float64."""

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        config = json.loads((folder / "config.json").read_text())
        self.config: dict[str, Any] = config.get("text_config", config)
        self.quantization: dict[str, Any] = config["quantization"]
        self.index: dict[str, tuple[NDArray[np.uint8], dict[str, Any]]] = {}
        for path in sorted(folder.glob("model*.safetensors")):
            with path.open("rb") as file:
                size = struct.unpack("<Q", file.read(8))[0]
                header = json.loads(file.read(size))
            data = np.memmap(path, np.uint8, "r", 8 + size)
            header.pop("__metadata__", None)
            self.index |= {name: (data, entry) for name, entry in header.items()}
        wrapped = "language_model.model.norm.weight" in self.index
        self.root = "language_model.model." if wrapped else "model."
        self.head = "language_model.lm_head" if wrapped else "lm_head"

    @property
    def layer_types(self) -> list[str]:
        c = self.config
        interval = c.get("full_attention_interval", 4)
        layers = range(1, c["num_hidden_layers"] + 1)
        return c.get("layer_types") or ["linear_attention" if i % interval else "full_attention" for i in layers]

    def raw(self, name: str, part: int | slice | None = None) -> NDArray[Any]:
        """The stored array, BF16 widened to float32; `part` picks an index or a slice of the first axis."""
        data, entry = self.index[name]
        shape, (begin, end) = entry["shape"], entry["data_offsets"]
        rows = data[begin:end].reshape(shape[0], -1)[slice(None) if part is None else part]
        # Copied by tobytes(): the data may lie at any byte.
        array = np.frombuffer(rows.tobytes(), DTYPES[entry["dtype"]]).reshape(*rows.shape[:-1], *shape[1:])
        return (array.astype(np.uint32) << 16).view(np.float32) if entry["dtype"] == "BF16" else array

    def vector(self, name: str) -> Array:
        return self.raw(name).astype(np.float64)

    def weight(self, module: str, part: int | slice | None = None) -> Array:
        """The matrix [rows, columns] of `module`; `part` picks rows, or one expert of a stack."""
        rule = self.quantization.get(module, self.quantization)
        bits, group_size = rule["bits"], rule["group_size"]
        words, scales, biases = (self.raw(f"{module}.{kind}", part) for kind in ("weight", "scales", "biases"))
        codes = (words[..., None] >> (np.arange(32 // bits, dtype=np.uint32) * bits)) & (2**bits - 1)
        codes = codes.reshape(*scales.shape, group_size).astype(np.float64)
        w = codes * scales[..., None].astype(np.float64) + biases[..., None].astype(np.float64)
        return np.asarray(w.reshape(*scales.shape[:-1], -1))


def sigmoid(x: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0.0, -x)))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def rms_norm(x: Array, gain: Array, eps: float) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain)


def l2_norm(x: Array) -> Array:
    """x / |x| with eps added to the sum, not to the mean."""
    return np.asarray(x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6))


def delta_rule_steps(q: Array, k: Array, v: Array, g: Array, beta: Array) -> tuple[Array, Array]:
    """Gated delta rule, token by token, from a zero state.

    q, k [T, Hv, dk], v [T, Hv, dv], g (log decay) and beta [T, Hv]. Returns o [T, Hv, dv] and the state [Hv, dk, dv].
    """
    state, out = np.zeros((*k.shape[1:], v.shape[-1])), np.empty_like(v)
    for t in range(len(v)):
        state *= np.exp(g[t])[:, None, None]
        d = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", state, k[t]))
        state += k[t][:, :, None] * d[:, None, :]
        out[t] = np.einsum("hkv,hk->hv", state, q[t])
    return out, state


def delta_rule_chunks(q: Array, k: Array, v: Array, g: Array, beta: Array, chunk_size: int) -> tuple[Array, Array]:
    """The same map as delta_rule_steps, `chunk_size` tokens at a time."""
    state, out = np.zeros((*k.shape[1:], v.shape[-1])), np.empty_like(v)
    for start in range(0, len(v), chunk_size):
        rows = slice(start, start + chunk_size)
        for h in range(v.shape[1]):
            Q, K, V, b = q[rows, h], k[rows, h], v[rows, h], beta[rows, h, None]
            G = np.cumsum(g[rows, h])[:, None]  # log decay since the chunk began
            decay = np.tril(np.exp(np.minimum(G - G.T, 0.0)))  # exp(G_i - G_j) for j <= i
            system = np.eye(len(G)) + np.tril(b * (K @ K.T) * decay, -1)  # unit lower triangular
            U, W = np.linalg.solve(system, b * V), np.linalg.solve(system, b * np.exp(G) * K)
            D = U - W @ state[h]  # row i: what token i adds to the state
            out[rows, h] = (np.exp(G) * Q) @ state[h] + ((Q @ K.T) * decay) @ D
            state[h] = np.exp(G[-1]) * state[h] + (np.exp(G[-1] - G) * K).T @ D
    return out, state


def delta_net_inputs(ck: Checkpoint, name: str, x: Array) -> tuple[Array, Array, Array, Array]:
    """qkv [T, C] (all q, all k, all v), z [T, Hv, dv], b and a [T, Hv] of the normed rows x."""
    c, T = ck.config, len(x)
    Hk, Hv = c["linear_num_key_heads"], c["linear_num_value_heads"]
    dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]

    def project(module: str) -> Array:
        return x @ ck.weight(f"{name}.{module}").T

    if f"{name}.in_proj_qkvz.weight" not in ck.index:
        z = project("in_proj_z").reshape(T, Hv, dv)
        return project("in_proj_qkv"), z, project("in_proj_b"), project("in_proj_a")
    per_key = Hv // Hk  # qwen3_next stores rows by key head: q, k, then v and z of its value heads
    cuts = [dk, 2 * dk, 2 * dk + per_key * dv]
    q, k, v, z = np.split(project("in_proj_qkvz").reshape(T, Hk, -1), cuts, -1)
    b, a = np.split(project("in_proj_ba").reshape(T, Hk, 2 * per_key), 2, -1)
    qkv = np.concatenate([m.reshape(T, -1) for m in (q, k, v)], -1)
    return qkv, z.reshape(T, Hv, dv), b.reshape(T, Hv), a.reshape(T, Hv)


def gated_delta_net(ck: Checkpoint, name: str, x: Array, chunk_size: int, trace: Trace) -> Array:
    c, T = ck.config, len(x)
    Hk, Hv = c["linear_num_key_heads"], c["linear_num_value_heads"]
    dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
    qkv, z, b, a = delta_net_inputs(ck, name, x)
    taps = ck.vector(f"{name}.conv1d.weight").reshape(qkv.shape[-1], -1)  # [C, 4], the last one is for the newest row
    n = taps.shape[1]
    padded = np.concatenate([np.zeros((n - 1, qkv.shape[-1])), qkv])
    conv = silu(sum((padded[j : j + T] * taps[:, j] for j in range(n)), np.zeros_like(qkv)))
    q, k, v = np.split(conv, [Hk * dk, 2 * Hk * dk], -1)
    # Value head h reads key head h // (Hv / Hk).
    q = np.repeat(l2_norm(q.reshape(T, Hk, dk)) * dk**-0.5, Hv // Hk, 1)
    k = np.repeat(l2_norm(k.reshape(T, Hk, dk)), Hv // Hk, 1)
    g = -np.exp(ck.vector(f"{name}.A_log")) * np.logaddexp(0.0, a + ck.vector(f"{name}.dt_bias"))
    v, beta = v.reshape(T, Hv, dv), sigmoid(b)
    o, state = delta_rule_chunks(q, k, v, g, beta, chunk_size) if chunk_size else delta_rule_steps(q, k, v, g, beta)
    trace(f"{name}.conv_state", padded[T:])  # the last n - 1 rows before the convolution, oldest first
    trace(f"{name}.recurrent_state", state)
    o = rms_norm(o, ck.vector(f"{name}.norm.weight"), c["rms_norm_eps"]) * silu(z)
    return o.reshape(T, -1) @ ck.weight(f"{name}.out_proj").T


def attention(ck: Checkpoint, name: str, x: Array) -> Array:
    c, T = ck.config, len(x)
    Hq, Hkv, D, eps = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], c["rms_norm_eps"]
    q, gate = np.split((x @ ck.weight(f"{name}.q_proj").T).reshape(T, Hq, 2 * D), 2, -1)  # per head: query, gate
    k = (x @ ck.weight(f"{name}.k_proj").T).reshape(T, Hkv, D)
    v = (x @ ck.weight(f"{name}.v_proj").T).reshape(T, Hkv, D)
    rope = c.get("rope_parameters") or c
    half = int(D * rope.get("partial_rotary_factor", 0.25)) // 2
    angle = np.arange(T)[:, None, None] * float(rope["rope_theta"]) ** (-np.arange(half) / half)

    def norm_and_rotate(m: Array, gain: str) -> Array:
        m = rms_norm(m, ck.vector(f"{name}.{gain}.weight"), eps)
        low, high, cos, sin = m[..., :half], m[..., half : 2 * half], np.cos(angle), np.sin(angle)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin, m[..., 2 * half :]], -1)

    q, k = norm_and_rotate(q, "q_norm"), norm_and_rotate(k, "k_norm")
    k, v = np.repeat(k, Hq // Hkv, 1), np.repeat(v, Hq // Hkv, 1)  # query head h reads KV head h // (Hq / Hkv)
    scores = np.einsum("thd,shd->hts", q, k) * D**-0.5 + np.triu(np.full((T, T), -np.inf), 1)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    o: Array = np.einsum("hts,shd->thd", p / p.sum(-1, keepdims=True), v)
    return (o * sigmoid(gate)).reshape(T, -1) @ ck.weight(f"{name}.o_proj").T


def moe(ck: Checkpoint, name: str, x: Array, trace: Trace) -> Array:
    def swiglu(rows: Array, module: str, expert: int | None = None) -> Array:
        gate, up, down = (ck.weight(f"{name}.{module}.{part}_proj", expert) for part in ("gate", "up", "down"))
        return (silu(rows @ gate.T) * (rows @ up.T)) @ down.T

    router_logits = x @ ck.weight(f"{name}.gate").T
    order = np.argsort(-router_logits, -1, kind="stable")  # ties: the lower expert id first
    topk_ids = order[:, : ck.config["num_experts_per_tok"]]
    p = np.exp(router_logits - router_logits.max(-1, keepdims=True))
    topk_weights = np.take_along_axis(p, topk_ids, -1)
    topk_weights /= topk_weights.sum(-1, keepdims=True)
    trace(f"{name}.router_logits", router_logits)
    trace(f"{name}.topk_ids", topk_ids)
    y = np.zeros_like(x)
    for e in np.unique(topk_ids):
        token, slot = np.nonzero(topk_ids == e)
        y[token] += topk_weights[token, slot, None] * swiglu(x[token], "switch_mlp", int(e))
    return y + sigmoid(x @ ck.weight(f"{name}.shared_expert_gate").T) * swiglu(x, "shared_expert")


def forward(
    folder: str | Path | Checkpoint, token_ids: Sequence[int], *, chunk_size: int = 0, trace: Trace = no_trace
) -> Array:
    """Logits [T, vocab_size] of every position.

    chunk_size: tokens per chunk of the delta rule; 0 goes token by token. `trace(name, array)` is called with the
    intermediate results of each layer: `.router_logits`, `.topk_ids`, `.conv_state`, `.recurrent_state` and `.out`.
    """
    ck = folder if isinstance(folder, Checkpoint) else Checkpoint(folder)
    eps = ck.config["rms_norm_eps"]
    x = np.stack([ck.weight(f"{ck.root}embed_tokens", int(i)) for i in token_ids])
    for i, kind in enumerate(ck.layer_types):
        layer = f"{ck.root}layers.{i}"
        h = rms_norm(x, ck.vector(f"{layer}.input_layernorm.weight"), eps)
        if kind == "full_attention":
            x = x + attention(ck, f"{layer}.self_attn", h)
        else:
            x = x + gated_delta_net(ck, f"{layer}.linear_attn", h, chunk_size, trace)
        h = rms_norm(x, ck.vector(f"{layer}.post_attention_layernorm.weight"), eps)
        x = x + moe(ck, f"{layer}.mlp", h, trace)
        trace(f"{layer}.out", x)
    x = rms_norm(x, ck.vector(f"{ck.root}norm.weight"), eps)
    blocks = range(0, ck.config["vocab_size"], HEAD_ROWS)
    return np.concatenate([x @ ck.weight(ck.head, slice(b, b + HEAD_ROWS)).T for b in blocks], -1)
