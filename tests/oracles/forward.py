"""Reference forward pass of both model families in float64, from the published formulas; slow and plain on purpose.

The operations are those of the modules beside this one, which the kernel tests compare with too.
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

from tests.oracles.attention import attend, rope
from tests.oracles.delta_net import DeltaNet
from tests.oracles.moe import combine, topk
from tests.oracles.rows import F64 as Array
from tests.oracles.rows import gated_norm, norm, swiglu

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
    c = ck.config
    dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
    qkv, z, b, a = delta_net_inputs(ck, name, x)
    channels = qkv.shape[1]
    conv_w = ck.vector(f"{name}.conv1d.weight").reshape(channels, -1)  # [C, 4], the last one is for the newest row
    net = DeltaNet(
        conv_w,
        a_log=ck.vector(f"{name}.A_log"),
        dt_bias=ck.vector(f"{name}.dt_bias"),
        conv_state=np.zeros((conv_w.shape[1] - 1, channels)),
        recurrent_state=np.zeros((c["linear_num_value_heads"], dk, dv)),
    )
    o = net.run(qkv, b, a, chunk_size)
    trace(f"{name}.conv_state", net.conv_state)
    trace(f"{name}.recurrent_state", net.recurrent_state)
    y = gated_norm(o, z, ck.vector(f"{name}.norm.weight"), c["rms_norm_eps"])
    return np.asarray(y.reshape(len(x), -1) @ ck.weight(f"{name}.out_proj").T)


def attention(ck: Checkpoint, name: str, x: Array) -> Array:
    c, T = ck.config, len(x)
    Hq, Hkv, D = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    q, gate = np.split((x @ ck.weight(f"{name}.q_proj").T).reshape(T, Hq, 2 * D), 2, -1)  # per head: query, gate
    k = (x @ ck.weight(f"{name}.k_proj").T).reshape(T, Hkv, D)
    v = (x @ ck.weight(f"{name}.v_proj").T).reshape(T, Hkv, D)
    parameters = c.get("rope_parameters") or c
    theta, rotary_dim = float(parameters["rope_theta"]), int(D * parameters.get("partial_rotary_factor", 0.25))

    def norm_and_rotate(m: Array, gain: str) -> Array:
        return rope(norm(m, ck.vector(f"{name}.{gain}.weight"), c["rms_norm_eps"]), np.arange(T), theta, rotary_dim)

    o = attend(norm_and_rotate(q, "q_norm"), gate, norm_and_rotate(k, "k_norm"), v, 0)
    return np.asarray(o.reshape(T, -1) @ ck.weight(f"{name}.o_proj").T)


def moe(ck: Checkpoint, name: str, x: Array, trace: Trace) -> Array:
    def expert(rows: Array, module: str, part: int | None = None) -> Array:
        gate, up, down = (ck.weight(f"{name}.{module}.{kind}_proj", part) for kind in ("gate", "up", "down"))
        return np.asarray(swiglu(rows, gate, up) @ down.T)

    router_logits = x @ ck.weight(f"{name}.gate").T
    topk_ids, topk_weights = topk(router_logits, ck.config["num_experts_per_tok"])
    trace(f"{name}.router_logits", router_logits)
    trace(f"{name}.topk_ids", topk_ids)
    d = np.empty((*topk_ids.shape, x.shape[1]))
    for e in np.unique(topk_ids):
        token, slot = np.nonzero(topk_ids == e)
        d[token, slot] = expert(x[token], "switch_mlp", int(e))
    shared_gate = x @ ck.weight(f"{name}.shared_expert_gate")[0]
    return combine(d, topk_weights, expert(x, "shared_expert"), shared_gate)


def forward(
    folder: str | Path | Checkpoint,
    token_ids: Sequence[int],
    *,
    chunk_size: int = 0,
    positions: Sequence[int] | None = None,
    trace: Trace = no_trace,
) -> Array:
    """Logits [T, vocab_size] of every position, or of the `positions` given, in their order.

    chunk_size: tokens per chunk of the delta rule; 0 goes token by token. `trace(name, array)` is called with the
    intermediate results of each layer: `.router_logits`, `.topk_ids`, `.conv_state`, `.recurrent_state` and `.out`.
    """
    ck = folder if isinstance(folder, Checkpoint) else Checkpoint(folder)
    eps = ck.config["rms_norm_eps"]
    x = np.stack([ck.weight(f"{ck.root}embed_tokens", int(i)) for i in token_ids])
    for i, kind in enumerate(ck.layer_types):
        layer = f"{ck.root}layers.{i}"
        h = norm(x, ck.vector(f"{layer}.input_layernorm.weight"), eps)
        if kind == "full_attention":
            x = x + attention(ck, f"{layer}.self_attn", h)
        else:
            x = x + gated_delta_net(ck, f"{layer}.linear_attn", h, chunk_size, trace)
        h = norm(x, ck.vector(f"{layer}.post_attention_layernorm.weight"), eps)
        x = x + moe(ck, f"{layer}.mlp", h, trace)
        trace(f"{layer}.out", x)
    x = norm(x if positions is None else x[list(positions)], ck.vector(f"{ck.root}norm.weight"), eps)
    blocks = range(0, ck.config["vocab_size"], HEAD_ROWS)
    return np.concatenate([x @ ck.weight(ck.head, slice(b, b + HEAD_ROWS)).T for b in blocks], -1)
