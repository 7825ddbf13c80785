"""What every kernel test needs: model sizes, packed arguments and rows, quantised weights, the error measure."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
FORMATS = ("q4g64", "q4g64w", "q8g64", "q8g64w")
NO_SAMPLE = NO_EXPERT = 0xFFFFFFFF
PAGE_TOKENS = 256
EPS = 1e-6

# ModelConstants of Qwen3.6-35B-A3B and of the smallest test checkpoint; a test changes what it needs.
REAL = {
    "hidden_size": 2048, "vocab_size": 248320, "num_attention_layers": 10, "num_linear_layers": 30,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "rotary_dim": 64,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "num_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "max_pages": 1024,
}  # fmt: skip
NANO = {
    "hidden_size": 64, "vocab_size": 512, "num_attention_layers": 1, "num_linear_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "rotary_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64,
    "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "max_pages": 8,
}  # fmt: skip

# Table rows of shaders/lily_args.h.
STEP_ROW = np.dtype([(name, "<u4") for name in (
    "token_slot", "position", "slot_in", "slot_out", "page_row", "sample_row", "timeline", "wants_logits",
)])  # fmt: skip
SAMPLE_ROW = np.dtype([
    ("temperature", "<f4"), ("top_p", "<f4"), ("min_p", "<f4"), ("top_k", "<u4"),
    ("presence_penalty", "<f4"), ("frequency_penalty", "<f4"), ("repetition_penalty", "<f4"), ("uses_counts", "<u4"),
    ("seed_low", "<u4"), ("seed_high", "<u4"), ("num_logprobs", "<u4"), ("wants_logprob", "<u4"),
    ("bias_begin", "<u4"), ("bias_end", "<u4"), ("uses_mask", "<u4"), ("token_slot", "<u4")])  # fmt: skip
BIAS_ENTRY = np.dtype([("token_id", "<u4"), ("value", "<f4")])
SAMPLE_RESULT = np.dtype([
    ("token_id", "<u4"), ("logprob", "<f4"), ("num_logprobs", "<u4"),
    ("top_ids", "<u4", 20), ("top_logprobs", "<f4", 20)])  # fmt: skip
SAMPLE_BLOCK = np.dtype([("raw_max", "<f4"), ("raw_sum", "<f4"), ("best", "<f4"), ("best_id", "<u4")])
EXPERT_BLOCK = np.dtype([("expert", "<u4"), ("begin", "<u4"), ("end", "<u4")])
FLAGS = np.dtype([("abort", "<u4"), ("nan", "<u4")])

# A device under test: run(kernel, sizes, args, buffers, extent) updates the buffers that the kernel writes.
Run = Callable[[str, Mapping[str, int], bytes, Sequence[Array], tuple[int, int, int]], None]


def pack(*fields: int) -> bytes:
    """An argument struct of u32 fields."""
    return struct.pack(f"<{len(fields)}I", *fields)


def step_rows(count: int, **fields: int | Sequence[int]) -> Array:
    """`count` step rows with the given columns; what is not given is 0."""
    rows = np.zeros(count, STEP_ROW)
    for name, value in fields.items():
        rows[name] = value
    return rows


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> NDArray[np.float32]:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def unwritten(*shape: int) -> NDArray[np.float32]:
    """An output nobody has written: what a kernel leaves out stays NaN."""
    return np.full(shape, np.nan, np.float32)


def rms_ratio(got: Array, reference: Array) -> float:
    """rms(got - reference) / rms(reference); infinite when `got` is not finite."""
    assert got.shape == reference.shape, (got.shape, reference.shape)
    if not np.isfinite(got).all():
        return float("inf")
    error = np.sqrt(np.mean((got.astype(np.float64) - reference) ** 2))
    return float(error / max(np.sqrt(np.mean(np.asarray(reference, np.float64) ** 2)), 1e-30))


@dataclass(frozen=True)
class Weight:
    """A quantised weight [..., rows, columns]: what a kernel binds and its exact values in float64."""

    codes: Array  # u8 [..., rows, columns * bits / 8]
    scales: Array  # u16 (the bits of a BF16) or f32 [..., rows, columns / 64]
    biases: Array
    dense: NDArray[np.float64]

    @property
    def ranges(self) -> list[Array]:
        return [self.codes, self.scales, self.biases]


def random_weight(rng: np.random.Generator, form: str, *shape: int) -> Weight:
    """Random codes and pairs of format `form`; half of the scales are negative, var(w) is about 1 / columns."""
    bits, wide = int(form[1]), form.endswith("w")
    columns = shape[-1]
    codes = rng.integers(0, 2**bits, shape, dtype=np.uint8)
    pairs = (*shape[:-1], columns // 64)
    top = 2**bits - 1
    scales = rng.choice([-1.0, 1.0], pairs) * rng.uniform(0.5, 1.5, pairs) * (12 / columns) ** 0.5 / top
    biases = -scales * top * rng.uniform(0.3, 0.7, pairs)
    bits32 = [np.asarray(pair, np.float32).view(np.uint32) for pair in (scales, biases)]
    if not wide:
        bits32 = [pair & np.uint32(0xFFFF0000) for pair in bits32]
    exact = [pair.view(np.float32).astype(np.float64).repeat(64, axis=-1) for pair in bits32]
    stored = [pair.view(np.float32) if wide else (pair >> 16).astype(np.uint16) for pair in bits32]
    packed = codes if bits == 8 else codes[..., 0::2] | (codes[..., 1::2] << 4)
    return Weight(np.ascontiguousarray(packed), stored[0], stored[1], exact[0] * codes + exact[1])
