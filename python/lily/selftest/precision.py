"""The precisions of the kernels, by the activation part of their names (docs/design/kernels.md, "Precision")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

ACTIVATIONS: Final = ("f32", "i16", "f16")
# Errors that docs/design/model.md, section 6, allows float16: where operands are rounded, and for the chunked delta
# rule, whose products may take halves of operands that are kept in float32.
HALF: Final = 1e-3
HALF_CHUNK: Final = 2e-3

# Bound ranges that hold halves.
HALVES: Final[Mapping[str, Mapping[str, frozenset[int]]]] = {
    "f32": {},
    "i16": {op: frozenset({index}) for op, index in (
        ("attn_prep", 8), ("attn_prep_tile", 8), ("attn_split", 3), ("attn_prefill", 4),
    )},
    "f16": {op: frozenset(indices) for op, indices in (
        ("gdn_in", (5, 6)), ("gdn_in_tile", (0, 4, 5)), ("gdn_conv", (1,)), ("gdn_step", (1,)), ("gated_norm", (1, 3)),
        ("gdn_out", (1,)), ("gdn_out_tile", (0,)), ("attn_in", (5, 6, 7, 8)), ("attn_in_tile", (0, 4, 5, 6, 7)),
        ("attn_prep", (1, 2, 3, 8)), ("attn_prep_tile", (1, 2, 3, 8)), ("attn_split", (1, 3)), ("attn_combine", (1, 2)),
        ("attn_prefill", (1, 2, 4, 6)), ("attn_out", (0,)), ("attn_out_tile", (0,)), ("router_tile", (0,)),
        ("shared_up", (8,)), ("shared_up_tile", (0, 7)), ("experts_up", (10,)), ("experts_up_tile", (0, 10)),
        ("experts_down", (0, 7)), ("experts_down_tile", (0,)), ("shared_down_tile", (0,)), ("rms_norm", (2,)),
    )},
}  # fmt: skip


def op_of(kernel: str) -> str:
    """The operation of a kernel's name, with `_tile` for the prefill form: gdn_in of gdn_in_q4g64_f32."""
    return re.sub(r"_(?:q\d+g64w?|f32|i16|f16)(?=_|$)", "", kernel)


def halves_of(kernel: str, activation: str) -> frozenset[int]:
    return HALVES[activation].get(op_of(kernel), frozenset())


def tolerance_of(kernel: str, activation: str, float32: float) -> float:
    """The tolerance of an output: `float32` in that precision and where no operand is rounded; 0 stays 0."""
    if activation == "f16" and op_of(kernel) in ("gdn_chunk", "gdn_scan"):
        return max(float32, HALF_CHUNK)
    is_product = re.search(r"_q\d+g64", kernel) is not None and op_of(kernel).removesuffix("_tile") != "embed"
    rounds = activation != "f32" and (is_product or bool(halves_of(kernel, activation)))
    return max(float32, HALF) if rounds and float32 else float32
