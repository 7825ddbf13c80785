"""Arguments and table rows of the kernels (shaders/lily_args.h), as NumPy sees them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

FORMATS: Final = ("q4g64", "q4g64w", "q8g64", "q8g64w")
NO_SAMPLE: Final = 0xFFFFFFFF
NO_EXPERT: Final = 0xFFFFFFFF
PAGE_TOKENS: Final = 256
RMS_NORM_EPS: Final = 1e-6

# ModelConstants of a small model of the family.
SMALL: Final = {
    "hidden_size": 64, "vocab_size": 512, "num_attention_layers": 1, "num_linear_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "rotary_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64,
    "linear_value_head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
}  # fmt: skip

STEP_ROW: Final = np.dtype([(name, "<u4") for name in (
    "token_slot", "position", "slot_in", "slot_out", "page_begin", "sample_row", "timeline", "wants_logits",
    "keys_per_split",
)])  # fmt: skip
SAMPLE_ROW: Final = np.dtype([
    ("temperature", "<f4"), ("top_p", "<f4"), ("min_p", "<f4"), ("top_k", "<u4"),
    ("presence_penalty", "<f4"), ("frequency_penalty", "<f4"), ("repetition_penalty", "<f4"), ("uses_counts", "<u4"),
    ("seed_low", "<u4"), ("seed_high", "<u4"), ("num_logprobs", "<u4"), ("wants_logprob", "<u4"),
    ("bias_begin", "<u4"), ("bias_end", "<u4"), ("uses_mask", "<u4"), ("token_slot", "<u4")])  # fmt: skip
BIAS_ENTRY: Final = np.dtype([("token_id", "<u4"), ("value", "<f4")])
SAMPLE_RESULT: Final = np.dtype([
    ("token_id", "<u4"), ("logprob", "<f4"), ("num_logprobs", "<u4"),
    ("top_ids", "<u4", 20), ("top_logprobs", "<f4", 20)])  # fmt: skip
SAMPLE_BLOCK: Final = np.dtype([("raw_max", "<f4"), ("raw_sum", "<f4"), ("best", "<f4"), ("best_id", "<u4")])
EXPERT_BLOCK: Final = np.dtype([("expert", "<u4"), ("begin", "<u4"), ("end", "<u4")])
FLAGS: Final = np.dtype([("abort", "<u4"), ("nan", "<u4")])


def pack(*fields: int) -> bytes:
    """An argument struct of u32 fields."""
    return struct.pack(f"<{len(fields)}I", *fields)


def step_rows(count: int, **fields: int | Sequence[int]) -> Array:
    """`count` step rows with the given columns; what is not given is 0."""
    rows = np.zeros(count, STEP_ROW)
    for name, value in fields.items():
        rows[name] = value
    return rows


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
