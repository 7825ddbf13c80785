"""Kernel cases: for each operation of docs/design/kernels.md a small problem, made from a seed, with what it writes.

Each has odd numbers of rows and, in the prefill forms, rows on both sides of a chunk of 64. References of all outputs
are stored beside this package; tools/make_selftest.py computes them in float64.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Final

from ..numbers import Numbers
from ..tables import FORMATS
from . import attention, delta_net, experts, projections, sampling
from .case import STEP, TILE, Case

__all__ = ["Case", "all_cases"]


def all_cases() -> Iterator[Case]:
    """Every case, one after the other: together they are too large to keep."""
    for stem, build in _PLAIN.items():
        op, _, tile = stem.partition("+")
        kernel = f"{op}_f32{tile}"
        yield build(_numbers(kernel), kernel)
    for stem, build_form in _WEIGHTED.items():
        op, _, tile = stem.partition("+")
        for form in FORMATS:
            kernel = f"{op}_{form}_f32{tile}"
            yield build_form(_numbers(kernel), kernel, form)
    for form, shared_form in product(FORMATS, FORMATS):
        kernel = f"experts_down_{form}_{shared_form}_f32"
        yield experts.experts_down(_numbers(kernel), kernel, form, shared_form)


def _numbers(name: str) -> Numbers:
    return Numbers(zlib.crc32(name.encode()))


_PLAIN: Final[Mapping[str, Callable[[Numbers, str], Case]]] = {
    "rms_norm": projections.rms_norm,
    "gdn_step": delta_net.gdn_step,
    "gdn_conv": delta_net.gdn_conv,
    "gdn_chunk": delta_net.gdn_chunk,
    "gdn_scan": delta_net.gdn_scan,
    "gated_norm": delta_net.gated_norm,
    "attn_prep": attention.attn_prep(False),
    "attn_prep+_tile": attention.attn_prep(True),
    "attn_split": attention.attn_split,
    "attn_combine": attention.attn_combine,
    "attn_prefill": attention.attn_prefill,
    "topk": experts.topk,
    "moe_plan": experts.moe_plan,
    "moe_combine": experts.moe_combine,
    "sample_scan": sampling.sample_scan,
    "sample_pick": sampling.sample_pick,
}

_GDN_IN = [delta_net.CHANNELS, 256, 8]
_ATTN_IN = [256, 256, 128, 128]
_WEIGHTED: Final[Mapping[str, Callable[[Numbers, str, str], Case]]] = {
    "embed": projections.embed,
    "embed+_tile": projections.embed,
    "gdn_in": projections.projection(_GDN_IN, gained=True, names=["qkv", "z", "ba"]),
    "gdn_in+_tile": projections.projection(_GDN_IN, gained=False, names=["qkv", "z", "ba"]),
    "attn_in": projections.projection(_ATTN_IN, gained=True, names=["q", "gate", "k", "v"]),
    "attn_in+_tile": projections.projection(_ATTN_IN, gained=False, names=["q", "gate", "k", "v"]),
    "router": projections.projection([8, 1], gained=True, names=["router_logits", "shared_gate"]),
    "router+_tile": projections.projection([8, 1], gained=False, names=["router_logits", "shared_gate"]),
    "gdn_out": projections.gdn_out,
    "gdn_out+_tile": projections.residual(TILE),
    "attn_out": projections.residual(STEP),
    "attn_out+_tile": projections.residual(TILE),
    "shared_up": projections.shared_up,
    "shared_up+_tile": projections.shared_up,
    "shared_down+_tile": projections.shared_down,
    "experts_up": experts.experts_up,
    "experts_up+_tile": experts.experts_up_tile,
    "experts_down+_tile": experts.experts_down_tile,
    "lm_head": projections.lm_head,
}
