"""Small random checkpoints of both model families, bit for bit the same on every machine.

Each value depends on its tensor's name and its position alone, so no random generator can change it. Layout `hf` holds
bfloat16 tensors under the Hugging Face names, with a multi-token-prediction block; layout `mlx` holds the same weights
quantised as mlx-lm does it, with the traps of real files: data at an odd byte, negative scales, a vision tensor.

    python -m tools.make_checkpoint FOLDER --model qwen3_5_moe --layout mlx --size nano
"""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

GROUP_SIZE = 64
MODELS = ("qwen3_5_moe", "qwen3_next")
LAYOUTS = ("hf", "mlx")

# Pattern of module paths -> bits; the last one that matches counts. What mlx-lm does with `--q-bits 4`.
DEFAULT_BITS = {"*": 4, "*.mlp.gate": 8, "*.shared_expert_gate": 8}


@dataclass(frozen=True)
class Size:
    """Sizes of a model, and its mrope_section (which changes nothing for text)."""

    hidden: int
    layers: int
    vocab: int
    experts: int
    experts_per_tok: int
    expert_width: int
    query_heads: int
    kv_heads: int
    head_dim: int
    key_heads: int
    value_heads: int
    linear_head_dim: int
    mrope_section: tuple[int, int, int]

    @property
    def key_dim(self) -> int:
        return self.key_heads * self.linear_head_dim

    @property
    def value_dim(self) -> int:
        return self.value_heads * self.linear_head_dim


SIZES = {
    "nano": Size(
        hidden=64, layers=4, vocab=512, experts=8, experts_per_tok=2, expert_width=64, query_heads=4, kv_heads=2,
        head_dim=64, key_heads=2, value_heads=4, linear_head_dim=64, mrope_section=(3, 3, 2),
    ),
    "tiny": Size(
        hidden=256, layers=8, vocab=2048, experts=16, experts_per_tok=4, expert_width=128, query_heads=8, kv_heads=2,
        head_dim=256, key_heads=4, value_heads=8, linear_head_dim=128, mrope_section=(11, 11, 10),
    ),
}  # fmt: skip

Tensors = dict[str, NDArray[Any]]  # bfloat16 as its 16 bits in uint16


def uniform(name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Values in [-1, 1): SplitMix64 over the position, seeded with the FNV-1a hash of the name."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = (seed ^ byte) * 0x100000001B3 % 2**64
    z = np.arange(1, np.prod(shape) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = (z ^ (z >> np.uint64(31))) >> np.uint64(40)
    return (z.astype(np.float64) / 2**23 - 1.0).reshape(shape)


def to_bf16(x: Any) -> NDArray[np.uint16]:
    """Rounds to bfloat16, nearest even."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_dtype(x: Any, dtype: str) -> NDArray[Any]:
    """Rounds to the safetensors type `dtype`: BF16, F16 or F32."""
    return to_bf16(x) if dtype == "BF16" else np.asarray(x, {"F16": np.float16, "F32": np.float32}[dtype])


def widen(array: NDArray[Any]) -> NDArray[np.float32]:
    return from_bf16(array) if array.dtype == np.uint16 else array.astype(np.float32)


def quantize(w: NDArray[Any], bits: int, dtype: str = "BF16") -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Affine codes in groups of 64 along the last axis.

    Returns words [.., columns * bits / 32] u32, scales and biases [.., columns / 64].
    """
    groups = w.reshape(*w.shape[:-1], -1, GROUP_SIZE).astype(np.float64)
    low, high, top = groups.min(-1), groups.max(-1), 2**bits - 1
    flip = np.abs(high) > np.abs(low)  # anchored at the larger end: half of the scales are negative
    biases = to_dtype(np.where(flip, high, low), dtype)
    scales = to_dtype(np.where(flip, low - high, high - low) / top, dtype)
    exact = (groups - widen(biases)[..., None]) / widen(scales)[..., None].astype(np.float64)
    per_word = 32 // bits
    codes = np.clip(np.rint(exact), 0, top).astype(np.uint32).reshape(*w.shape[:-1], -1, per_word)
    words = (codes << (np.arange(per_word, dtype=np.uint32) * bits)).sum(-1, dtype=np.uint32)
    return words, scales, biases


def hugging_face_tensors(model: str, s: Size) -> Tensors:
    """Every tensor of the Hugging Face layout, in the order of the file."""
    root = "model.language_model." if model == "qwen3_5_moe" else "model."
    out: Tensors = {}

    def matrix(name: str, *shape: int, gain: float = 1.0, fan_in: int | None = None) -> None:
        out[name] = to_bf16(uniform(name, shape) * gain * (3.0 / (fan_in or shape[-1])) ** 0.5)

    def vector(name: str, length: int, mean: float = 0.0, spread: float = 0.2) -> None:
        out[name] = to_bf16(mean + spread * uniform(name, (length,)))

    def attention(p: str) -> None:
        matrix(f"{p}.q_proj.weight", 2 * s.query_heads * s.head_dim, s.hidden)
        matrix(f"{p}.k_proj.weight", s.kv_heads * s.head_dim, s.hidden)
        matrix(f"{p}.v_proj.weight", s.kv_heads * s.head_dim, s.hidden)
        matrix(f"{p}.o_proj.weight", s.hidden, s.query_heads * s.head_dim)
        vector(f"{p}.q_norm.weight", s.head_dim)
        vector(f"{p}.k_norm.weight", s.head_dim)

    def delta_net(p: str) -> None:
        channels = 2 * s.key_dim + s.value_dim
        if model == "qwen3_next":
            matrix(f"{p}.in_proj_qkvz.weight", channels + s.value_dim, s.hidden)
            matrix(f"{p}.in_proj_ba.weight", 2 * s.value_heads, s.hidden)
        else:
            matrix(f"{p}.in_proj_qkv.weight", channels, s.hidden)
            matrix(f"{p}.in_proj_z.weight", s.value_dim, s.hidden)
            matrix(f"{p}.in_proj_b.weight", s.value_heads, s.hidden)
            matrix(f"{p}.in_proj_a.weight", s.value_heads, s.hidden)
        matrix(f"{p}.conv1d.weight", channels, 1, 4)
        vector(f"{p}.dt_bias", s.value_heads, -2.0, 1.5)
        vector(f"{p}.A_log", s.value_heads, -0.5, 1.5)
        vector(f"{p}.norm.weight", s.linear_head_dim, 1.0)
        matrix(f"{p}.out_proj.weight", s.hidden, s.value_dim)

    def mlp(p: str) -> None:
        matrix(f"{p}.gate_proj.weight", s.expert_width, s.hidden)
        matrix(f"{p}.up_proj.weight", s.expert_width, s.hidden)
        matrix(f"{p}.down_proj.weight", s.hidden, s.expert_width)

    def moe(p: str) -> None:
        matrix(f"{p}.gate.weight", s.experts, s.hidden, gain=1.5)
        if model == "qwen3_5_moe":
            matrix(f"{p}.experts.gate_up_proj", s.experts, 2 * s.expert_width, s.hidden)
            matrix(f"{p}.experts.down_proj", s.experts, s.hidden, s.expert_width)
        mlp(f"{p}.shared_expert")
        if model == "qwen3_next":
            for expert in range(s.experts):
                mlp(f"{p}.experts.{expert}")
        matrix(f"{p}.shared_expert_gate.weight", 1, s.hidden)

    def layer(p: str, is_full_attention: bool) -> None:
        vector(f"{p}.input_layernorm.weight", s.hidden)
        vector(f"{p}.post_attention_layernorm.weight", s.hidden)
        if is_full_attention:
            attention(f"{p}.self_attn")
        else:
            delta_net(f"{p}.linear_attn")
        moe(f"{p}.mlp")

    matrix(root + "embed_tokens.weight", s.vocab, s.hidden, fan_in=1)
    for i in range(s.layers):
        layer(f"{root}layers.{i}", i % 4 == 3)
    vector(root + "norm.weight", s.hidden)
    matrix("lm_head.weight", s.vocab, s.hidden, gain=3.0)
    layer("mtp.layers.0", True)
    matrix("mtp.fc.weight", s.hidden, 2 * s.hidden)
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        vector(f"mtp.{name}.weight", s.hidden)
    return out


def mlx_names(model: str, hugging_face: Tensors) -> Iterator[tuple[str, NDArray[np.uint16]]]:
    """The same weights as mlx-lm names and shapes them, not yet quantised: gains 1 + w, experts stacked, no mtp."""
    for name, bits in hugging_face.items():
        if name.startswith("mtp."):
            continue
        source = name
        if model == "qwen3_5_moe":
            name = name.replace("model.language_model.", "language_model.model.")
            name = name.replace("lm_head", "language_model.lm_head")
        if name.endswith(("layernorm.weight", "model.norm.weight", "q_norm.weight", "k_norm.weight")):
            yield name, to_bf16(1.0 + from_bf16(bits))
        elif name.endswith("conv1d.weight"):
            yield name, bits.transpose(0, 2, 1)
        elif name.endswith("experts.gate_up_proj"):
            gate, up = np.split(bits, 2, axis=1)
            yield name.replace("experts.gate_up_proj", "switch_mlp.gate_proj.weight"), gate
            yield name.replace("experts.gate_up_proj", "switch_mlp.up_proj.weight"), up
        elif name.endswith("experts.down_proj"):
            yield name.replace("experts.down_proj", "switch_mlp.down_proj.weight"), bits
        elif ".experts.0." in name:
            before, after = source.split(".experts.0.")
            count = sum(n.startswith(f"{before}.experts.") and n.endswith(f".{after}") for n in hugging_face)
            stacked = [hugging_face[f"{before}.experts.{e}.{after}"] for e in range(count)]
            yield name.replace("experts.0.", "switch_mlp."), np.stack(stacked)
        elif ".experts." not in name:
            yield name, bits


def last_match(patterns: Mapping[str, Any], name: str) -> Any:
    return [value for pattern, value in patterns.items() if fnmatchcase(name, pattern)][-1]


def mlx_tensors(
    model: str, hugging_face: Tensors, bits: Mapping[str, int], dtypes: Mapping[str, str]
) -> tuple[Tensors, dict[str, Any]]:
    """Tensors of the MLX layout in the order of the file, and the `quantization` of config.json."""
    out: Tensors = {}
    quantization: dict[str, Any] = {"group_size": GROUP_SIZE, "bits": bits["*"], "mode": "affine"}
    for name, values in mlx_names(model, hugging_face):
        module = name.removesuffix(".weight")
        if values.ndim == 1 or name.endswith("conv1d.weight"):
            dtype = last_match(dtypes, name)
            out[name] = values if dtype == "BF16" else to_dtype(from_bf16(values), dtype)
            continue
        module_bits = last_match(bits, module)
        if module_bits != bits["*"]:
            quantization[module] = {"group_size": GROUP_SIZE, "bits": module_bits}
        words, scales, biases = quantize(from_bf16(values), module_bits, last_match(dtypes, module))
        out |= {f"{module}.weight": words, f"{module}.scales": scales, f"{module}.biases": biases}
    if model == "qwen3_5_moe":
        out["vision_tower.patch_embed.proj.bias"] = to_bf16(np.zeros(4))
    return out, quantization


def config_of(model: str, s: Size) -> dict[str, Any]:
    text: dict[str, Any] = {
        "hidden_size": s.hidden,
        "num_hidden_layers": s.layers,
        "vocab_size": s.vocab,
        "num_attention_heads": s.query_heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "linear_num_key_heads": s.key_heads,
        "linear_num_value_heads": s.value_heads,
        "linear_key_head_dim": s.linear_head_dim,
        "linear_value_head_dim": s.linear_head_dim,
        "linear_conv_kernel_dim": 4,
        "num_experts": s.experts,
        "num_experts_per_tok": s.experts_per_tok,
        "moe_intermediate_size": s.expert_width,
        "shared_expert_intermediate_size": s.expert_width,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 262144,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "full_attention_interval": 4,
        "eos_token_id": s.vocab - 2,
    }
    if model == "qwen3_next":
        flat = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "intermediate_size": 512}
        rope = {"rope_theta": 10000000, "partial_rotary_factor": 0.25, "rope_scaling": None}
        return {"model_type": model, "architectures": ["Qwen3NextForCausalLM"], **text, **flat, **rope}
    text |= {
        "model_type": "qwen3_5_moe_text",
        "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(s.layers)],
        "attn_output_gate": True,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": list(s.mrope_section),
        },
    }
    architectures = ["Qwen3_5MoeForConditionalGeneration"]
    return {"model_type": model, "architectures": architectures, "text_config": text, "tie_word_embeddings": False}


def save_safetensors(path: Path, tensors: Tensors, kind: str, *, start: int = 0) -> None:
    """Writes a file whose data begins `start` bytes behind a multiple of 8."""
    names = {"uint16": "BF16", "float16": "F16", "float32": "F32", "uint32": "U32"}
    header: dict[str, Any] = {"__metadata__": {"format": kind}}
    offset = 0
    for name, array in tensors.items():
        offsets = [offset, offset + array.nbytes]
        header[name] = {"dtype": names[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8 + start)
    data = b"".join(array.tobytes() for array in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def save_shards(folder: Path, tensors: Tensors, kind: str, *, shards: int, start: int) -> None:
    """Writes model.safetensors, or several files of about equal tensor counts and their index."""
    if shards == 1:
        save_safetensors(folder / "model.safetensors", tensors, kind, start=start)
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for i in range(shards):
        part = names[len(names) * i // shards : len(names) * (i + 1) // shards]
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        save_safetensors(folder / file, {name: tensors[name] for name in part}, kind, start=start)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def make(
    folder: str | Path,
    model: str = "qwen3_5_moe",
    layout: str = "mlx",
    size: str = "nano",
    *,
    aligned: bool = False,
    shards: int = 1,
    bits: Mapping[str, int] | None = None,
    dtypes: Mapping[str, str] | None = None,
) -> Path:
    """Writes a checkpoint and returns its folder, which is made when missing.

    aligned: start the data of MLX files at a multiple of 8 instead of an odd byte (Hugging Face files always do).
    shards: number of files; more than one get a model.safetensors.index.json.
    bits: pattern of MLX module paths -> 4 or 8, the last match counts; without "*" they come on top of DEFAULT_BITS.
    dtypes: pattern -> BF16, F16 or F32, of scales and biases of MLX modules (by module path) and of vectors (by name).
    """
    folder, s = Path(folder), SIZES[size]
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = config_of(model, s), hugging_face_tensors(model, s)
    if layout == "mlx":
        rules = {**DEFAULT_BITS, **(bits or {})} if bits is None or "*" not in bits else bits
        tensors, config["quantization"] = mlx_tensors(model, tensors, rules, {"*": "BF16", **(dtypes or {})})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [s.vocab - 1, s.vocab - 2]}))
    start = 3 if layout == "mlx" and not aligned else 0
    save_shards(folder, tensors, "mlx" if layout == "mlx" else "pt", shards=shards, start=start)
    return folder


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("folder")
    cli.add_argument("--model", choices=MODELS, default="qwen3_5_moe")
    cli.add_argument("--layout", choices=LAYOUTS, default="mlx")
    cli.add_argument("--size", choices=tuple(SIZES), default="nano")
    cli.add_argument("--aligned", action="store_true", help="start the data at a multiple of 8 bytes")
    cli.add_argument("--shards", type=int, default=1, help="number of files")
    args = cli.parse_args()
    print(make(args.folder, args.model, args.layout, args.size, aligned=args.aligned, shards=args.shards))


if __name__ == "__main__":
    main()
