"""Write a checkpoint as GGUF with exactly the same numbers, for the engines that read GGUF.

An MLX 4-bit group whose bias is -8 scale holds the numbers of two Q4_0 blocks, scale (code - 8): codes are only moved.
The 8-bit router and shared gate become float32, as llama.cpp keeps them. So what two engines differ by afterwards comes
from their arithmetic, not from a second quantisation. The checkpoint has to be symmetric:

    python -m tools.make_synthetic CHECKPOINT tests/model/configs/qwen3.6-35b-a3b-mlx-4bit.json --layers 4 --symmetric
    python -m bench.peers.to_gguf CHECKPOINT FILE.gguf

Needs the package gguf. The file has no tokenizer: the bench feeds token ids.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.oracles.forward import Checkpoint

ARCHITECTURE = "qwen35moe"
F32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]


def q4_0(words: NDArray[np.uint32], scales: F32, biases: F32) -> Bytes:
    """Q4_0 blocks, uint8 [..., columns / 32 * 18], of codes [..., columns / 8] in groups of 64 [..., columns / 64].

    Raises ValueError where Q4_0 cannot hold the same numbers.
    """
    half = scales.astype(np.float16)
    if not np.array_equal(biases, -8 * scales):
        raise ValueError("biases are not -8 scales: make the checkpoint with tools.make_synthetic --symmetric")
    if not np.array_equal(half.astype(np.float32), scales):
        raise ValueError("a scale is no float16 number: Q4_0 cannot hold this checkpoint")
    pairs = np.ascontiguousarray(words).view(np.uint8).reshape(*scales.shape, 2, 16)  # a byte: codes 2 i and 2 i + 1
    codes = np.empty((*pairs.shape[:-1], 32), np.uint8)
    codes[..., 0::2], codes[..., 1::2] = pairs & 15, pairs >> 4
    blocks = np.empty((*pairs.shape[:-1], 18), np.uint8)
    blocks[..., :2] = half.view(np.uint8).reshape(*scales.shape, 1, 2)
    blocks[..., 2:] = codes[..., :16] | codes[..., 16:] << 4
    return blocks.reshape(*scales.shape[:-1], -1)


class Converter:
    """Tensors of a checkpoint under llama.cpp's names: uint8 arrays are Q4_0 blocks, the others float32."""

    def __init__(self, folder: Path) -> None:
        self.ck = Checkpoint(folder)
        c = self.config = self.ck.config
        if c["model_type"] != "qwen3_5_moe_text":
            raise ValueError(f"{folder}: model_type is {c['model_type']!r}, only 'qwen3_5_moe_text' can be converted")
        # llama.cpp repeats key heads as k0 k1 ... k0 k1 ..., so the value heads of one key head lie far apart there.
        keys, values = c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.value_heads = np.arange(values).reshape(keys, values // keys).T.ravel()
        self.value_rows = self.heads(self.value_heads, c["linear_value_head_dim"])
        qk = 2 * keys * c["linear_key_head_dim"]
        self.qkv_rows = np.concatenate([np.arange(qk), qk + self.value_rows])

    @staticmethod
    def heads(order: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """Row indices of heads of `size` rows in `order`."""
        return (order[:, None] * size + np.arange(size)).ravel()

    def blocks(self, module: str) -> Bytes:
        return q4_0(*(self.ck.raw(f"{module}.{part}") for part in ("weight", "scales", "biases")))

    def dense(self, module: str) -> F32:
        return self.ck.weight(module).astype(np.float32)

    def tensors(self) -> Iterator[tuple[str, Bytes | F32]]:
        root = self.ck.root
        yield "token_embd.weight", self.blocks(f"{root}embed_tokens")
        for i, kind in enumerate(self.ck.layer_types):
            parts = self.attention if kind == "full_attention" else self.delta_net
            for name, array in [*self.norms(f"{root}layers.{i}"), *parts(f"{root}layers.{i}")]:
                yield f"blk.{i}.{name}", array
            for name, array in self.moe(f"{root}layers.{i}.mlp"):
                yield f"blk.{i}.{name}", array
        yield "output_norm.weight", self.ck.raw(f"{root}norm.weight")
        yield "output.weight", self.blocks(self.ck.head)

    def norms(self, layer: str) -> Iterator[tuple[str, F32]]:
        yield "attn_norm.weight", self.ck.raw(f"{layer}.input_layernorm.weight")
        yield "post_attention_norm.weight", self.ck.raw(f"{layer}.post_attention_layernorm.weight")

    def attention(self, layer: str) -> Iterator[tuple[str, Bytes | F32]]:
        for name, module in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "output": "o_proj"}.items():
            yield f"attn_{name}.weight", self.blocks(f"{layer}.self_attn.{module}")
        for name in ("q_norm", "k_norm"):
            yield f"attn_{name}.weight", self.ck.raw(f"{layer}.self_attn.{name}.weight")

    def delta_net(self, layer: str) -> Iterator[tuple[str, Bytes | F32]]:
        name = f"{layer}.linear_attn"
        yield "attn_qkv.weight", self.blocks(f"{name}.in_proj_qkv")[self.qkv_rows]
        yield "attn_gate.weight", self.blocks(f"{name}.in_proj_z")[self.value_rows]
        yield "ssm_alpha.weight", self.blocks(f"{name}.in_proj_a")[self.value_heads]
        yield "ssm_beta.weight", self.blocks(f"{name}.in_proj_b")[self.value_heads]
        yield "ssm_conv1d.weight", self.ck.raw(f"{name}.conv1d.weight")[self.qkv_rows, :, 0]
        yield "ssm_dt.bias", self.ck.raw(f"{name}.dt_bias")[self.value_heads]
        yield "ssm_a", -np.exp(self.ck.raw(f"{name}.A_log")[self.value_heads])
        yield "ssm_norm.weight", self.ck.raw(f"{name}.norm.weight")
        out = self.blocks(f"{name}.out_proj")  # its columns are value heads, each a whole number of blocks
        by_head = out.reshape(len(out), len(self.value_heads), -1)
        yield "ssm_out.weight", by_head[:, self.value_heads].reshape(out.shape)

    def moe(self, name: str) -> Iterator[tuple[str, Bytes | F32]]:
        yield "ffn_gate_inp.weight", self.dense(f"{name}.gate")
        yield "ffn_gate_inp_shexp.weight", self.dense(f"{name}.shared_expert_gate")[0]
        for part in ("gate", "up", "down"):
            yield f"ffn_{part}_exps.weight", self.blocks(f"{name}.switch_mlp.{part}_proj")
            yield f"ffn_{part}_shexp.weight", self.blocks(f"{name}.shared_expert.{part}_proj")


def metadata(c: dict[str, Any]) -> dict[str, int | float]:
    """What llama.cpp calls the numbers of a text config, without the prefix of the architecture."""
    rope = c.get("rope_parameters", c)
    return {
        "block_count": c["num_hidden_layers"],
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "vocab_size": c["vocab_size"],
        "attention.head_count": c["num_attention_heads"],
        "attention.head_count_kv": c["num_key_value_heads"],
        "attention.key_length": c["head_dim"],
        "attention.value_length": c["head_dim"],
        "attention.layer_norm_rms_epsilon": float(c["rms_norm_eps"]),
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(c["head_dim"] * rope["partial_rotary_factor"]),
        "expert_count": c["num_experts"],
        "expert_used_count": c["num_experts_per_tok"],
        "expert_feed_forward_length": c["moe_intermediate_size"],
        "expert_shared_feed_forward_length": c["shared_expert_intermediate_size"],
        "ssm.conv_kernel": c["linear_conv_kernel_dim"],
        "ssm.state_size": c["linear_key_head_dim"],
        "ssm.group_count": c["linear_num_key_heads"],
        "ssm.time_step_rank": c["linear_num_value_heads"],
        "ssm.inner_size": c["linear_num_value_heads"] * c["linear_value_head_dim"],
        "full_attention_interval": c["full_attention_interval"],
    }


def to_gguf(folder: Path, file: Path) -> Path:
    """Write the checkpoint in `folder` to `file`, and return that. Raises ValueError if GGUF cannot hold it exactly."""
    import gguf  # of the dependency group dev

    converter = Converter(folder)
    writer = gguf.GGUFWriter(file, ARCHITECTURE, use_temp_file=True)
    for key, value in metadata(converter.config).items():
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        add(f"{ARCHITECTURE}.{key}", value)
    sections = converter.config["rope_parameters"]["mrope_section"]
    writer.add_array(f"{ARCHITECTURE}.rope.dimension_sections", [*sections, 0])
    writer.add_string("tokenizer.ggml.model", "none")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    for name, array in converter.tensors():
        writer.add_tensor(name, array, raw_dtype=gguf.GGMLQuantizationType.Q4_0 if array.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    to_gguf(options.folder, options.file)


if __name__ == "__main__":
    main()
