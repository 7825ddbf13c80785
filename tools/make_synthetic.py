"""Synthetic checkpoints at the real sizes, in the MLX layout: same names, shapes and shards, random weights.

Codes are uniform and scales have both signs, so rows have the spread of a trained matrix, activations stay in range and
the router spreads over all experts. The bytes come from blocks of noise that are laid end to end: fast, and the same on
every machine. The block lengths are prime, so no two rows or experts are alike.

    python -m tools.make_synthetic FOLDER tests/model/configs/qwen3.6-35b-a3b-mlx-4bit.json --layers 4 [--experts 8]
        [--unaligned] [--symmetric] [--tokenizer python/lily/models/lily-nano]
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from tools.make_checkpoint import to_bf16

GROUP_SIZE = 64
SHARD_BYTES = 5 << 30  # as mlx-lm splits
CODE_BLOCK = 67_108_859  # bytes; prime
VALUE_BLOCK = 1_048_573  # elements; prime


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written: `block` is repeated, from a place that depends on the name, until `shape` is full."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    block: Callable[[], NDArray[Any]]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape)) * {"U32": 4, "F32": 4, "BF16": 2}[self.dtype]


def noise(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(seed))


@cache
def codes() -> NDArray[np.uint8]:
    return np.frombuffer(noise(1).bytes(CODE_BLOCK), np.uint8)


@cache
def scales(bits: int, columns: int, gain: float) -> NDArray[np.uint16]:
    """Scales of a matrix whose elements then have the standard deviation gain / sqrt(columns)."""
    spread = np.sqrt((4**bits - 1) / 12)  # of uniform codes
    random = noise(2)
    sign = np.where(random.random(VALUE_BLOCK) < 0.5, -1.0, 1.0)
    return to_bf16(sign * random.uniform(0.8, 1.2, VALUE_BLOCK) * gain / spread / np.sqrt(columns))


@cache
def biases(bits: int, columns: int, gain: float, zero_code: float) -> NDArray[np.uint16]:
    """Biases that make `zero_code` stand for 0: the same noise as the scales."""
    wide = (scales(bits, columns, gain).astype(np.uint32) << 16).view(np.float32)
    return to_bf16(wide * -zero_code)


@cache
def uniform(mean: float, spread: float) -> NDArray[np.uint16]:
    return to_bf16(noise(3).uniform(mean - spread, mean + spread, VALUE_BLOCK))


class Model:
    """Names and shapes of all tensors of a config.json, in the order of the layers."""

    def __init__(self, config: dict[str, Any], symmetric: bool = False) -> None:
        self.symmetric = symmetric
        self.text = config.get("text_config", config)
        self.quantization = config["quantization"]
        self.wrapped = config["model_type"] == "qwen3_5_moe"
        self.root = "language_model.model." if self.wrapped else "model."

    def tensors(self) -> Iterator[Tensor]:
        t = self.text
        hidden, vocab = t["hidden_size"], t["vocab_size"]
        yield from self.matrix(self.root + "embed_tokens", vocab, hidden, gain=hidden**0.5)
        for layer in range(t["num_hidden_layers"]):
            yield from self.layer(f"{self.root}layers.{layer}", (layer + 1) % t["full_attention_interval"] == 0)
        yield self.vector(self.root + "norm.weight", hidden)
        yield from self.matrix("language_model.lm_head" if self.wrapped else "lm_head", vocab, hidden, gain=3)

    def layer(self, name: str, full_attention: bool) -> Iterator[Tensor]:
        hidden = self.text["hidden_size"]
        yield self.vector(f"{name}.input_layernorm.weight", hidden)
        yield self.vector(f"{name}.post_attention_layernorm.weight", hidden)
        yield from self.attention(f"{name}.self_attn") if full_attention else self.delta_net(f"{name}.linear_attn")
        yield from self.moe(f"{name}.mlp")

    def attention(self, name: str) -> Iterator[Tensor]:
        t, hidden = self.text, self.text["hidden_size"]
        query, key = t["num_attention_heads"] * t["head_dim"], t["num_key_value_heads"] * t["head_dim"]
        yield from self.matrix(f"{name}.q_proj", 2 * query, hidden)
        yield from self.matrix(f"{name}.k_proj", key, hidden)
        yield from self.matrix(f"{name}.v_proj", key, hidden)
        yield from self.matrix(f"{name}.o_proj", hidden, query)
        yield self.vector(f"{name}.q_norm.weight", t["head_dim"])
        yield self.vector(f"{name}.k_norm.weight", t["head_dim"])

    def delta_net(self, name: str) -> Iterator[Tensor]:
        t, hidden, heads = self.text, self.text["hidden_size"], self.text["linear_num_value_heads"]
        keys = t["linear_num_key_heads"] * t["linear_key_head_dim"]
        values = heads * t["linear_value_head_dim"]
        split = {"in_proj_qkv": 2 * keys + values, "in_proj_z": values, "in_proj_b": heads, "in_proj_a": heads}
        fused = {"in_proj_qkvz": 2 * keys + 2 * values, "in_proj_ba": 2 * heads}
        for part, rows in (split if self.wrapped else fused).items():
            yield from self.matrix(f"{name}.{part}", rows, hidden)
        yield Tensor(f"{name}.conv1d.weight", "BF16", (2 * keys + values, 4, 1), lambda: uniform(0.0, 0.87))
        yield self.vector(f"{name}.dt_bias", heads, -2.0, 1.5)
        yield self.vector(f"{name}.A_log", heads, -0.5, 1.5)
        yield self.vector(f"{name}.norm.weight", t["linear_value_head_dim"])
        yield from self.matrix(f"{name}.out_proj", hidden, values)

    def moe(self, name: str) -> Iterator[Tensor]:
        t, hidden, experts = self.text, self.text["hidden_size"], self.text["num_experts"]
        width, shared = t["moe_intermediate_size"], t["shared_expert_intermediate_size"]
        yield from self.matrix(f"{name}.gate", experts, hidden, gain=1.5)
        for part in ("gate_proj", "up_proj"):
            yield from self.matrix(f"{name}.switch_mlp.{part}", width, hidden, experts=experts)
            yield from self.matrix(f"{name}.shared_expert.{part}", shared, hidden)
        yield from self.matrix(f"{name}.switch_mlp.down_proj", hidden, width, experts=experts)
        yield from self.matrix(f"{name}.shared_expert.down_proj", hidden, shared)
        yield from self.matrix(f"{name}.shared_expert_gate", 1, hidden)

    def matrix(self, module: str, rows: int, columns: int, gain: float = 1.0, experts: int = 0) -> Iterator[Tensor]:
        bits = self.quantization.get(module, self.quantization)["bits"]
        lead = (experts, rows) if experts else (rows,)
        groups = (*lead, columns // GROUP_SIZE)
        zero_code = 2.0 ** (bits - 1) if self.symmetric else (2**bits - 1) / 2
        yield Tensor(f"{module}.weight", "U32", (*lead, columns * bits // 32), codes)
        yield Tensor(f"{module}.scales", "BF16", groups, lambda: scales(bits, columns, gain))
        yield Tensor(f"{module}.biases", "BF16", groups, lambda: biases(bits, columns, gain, zero_code))

    def vector(self, name: str, size: int, mean: float = 1.0, spread: float = 0.2) -> Tensor:
        return Tensor(name, "BF16", (size,), lambda: uniform(mean, spread))


def write_repeated(file: BinaryIO, tensor: Tensor) -> None:
    """The tensor's bytes: its block from a place that depends on the module, again and again."""
    block = tensor.block()
    # Scales and biases of a module belong together, so the place does not depend on the last part of the name.
    module = tensor.name.rpartition(".")[0]
    place = int.from_bytes(hashlib.sha256(module.encode()).digest()[:8], "little") % block.size
    remaining = tensor.nbytes
    data = memoryview(block).cast("B")
    begin = place * block.itemsize
    while remaining:
        piece = data[begin : begin + remaining]
        file.write(piece)
        remaining -= len(piece)
        begin = 0


def write_file(path: Path, tensors: list[Tensor], unaligned: bool, hollow: bool) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for tensor in tensors:
        end = offset + tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64 + (3 if unaligned else 0))
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if hollow:
            file.truncate(file.tell() + offset)
        for tensor in [] if hollow else tensors:
            write_repeated(file, tensor)


def make_synthetic(
    folder: Path,
    config: dict[str, Any],
    *,
    layers: int | None = None,
    experts: int | None = None,
    unaligned: bool = False,
    symmetric: bool = False,
    hollow: bool = False,
    tokenizer: Path | None = None,
) -> Path:
    """Write config.json and the weights of `config`, of its first `layers` layers only if given. Returns the folder.

    experts: so many in each layer; the state of a sequence, which no expert changes, keeps its real size.
    unaligned: tensor data starts at an odd byte, as mlx leaves it. symmetric: elements are scale (code - 2^(bits - 1)),
    the numbers of formats without a bias, such as GGUF's Q4_0; otherwise the codes are centred. hollow: all weights are
    zero and take no room on the disk, for what needs only names and shapes. tokenizer: the folder of a model whose
    tokenizer, chat template and end of text this one gets.
    """
    config = copy.deepcopy(config)
    text = config.get("text_config", config)
    if layers is not None:
        text["num_hidden_layers"] = layers
        if "layer_types" in text:
            text["layer_types"] = text["layer_types"][:layers]
    if experts is not None:
        text["num_experts"] = experts
        text["num_experts_per_tok"] = min(text["num_experts_per_tok"], experts)
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer is not None:
        for file in (*tokenizer.glob("tokenizer*.json"), *tokenizer.glob("chat_template.*")):
            shutil.copy(file, folder)
        for fields in (config, text):
            fields.pop("eos_token_id", None)  # which would be ids of another tokenizer
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    shards: list[list[Tensor]] = [[]]
    size = 0
    for tensor in Model(config, symmetric).tensors():
        if size + tensor.nbytes > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.nbytes
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, tensors in zip(names, shards, strict=True):
        write_file(folder / name, tensors, unaligned, hollow)
    weight_map = {t.name: name for name, tensors in zip(names, shards, strict=True) for t in tensors}
    total = sum(t.nbytes for tensors in shards for t in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("config", type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--experts", type=int)
    parser.add_argument("--unaligned", action="store_true")
    parser.add_argument("--symmetric", action="store_true", help="numbers that GGUF's Q4_0 holds too")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="FOLDER", help="the model whose tokenizer and chat template it gets"
    )
    args = parser.parse_args()
    config = json.loads(args.config.read_text(encoding="utf-8"))
    switches = {"unaligned": args.unaligned, "symmetric": args.symmetric, "tokenizer": args.tokenizer}
    make_synthetic(args.folder, config, layers=args.layers, experts=args.experts, **switches)


if __name__ == "__main__":
    main()
