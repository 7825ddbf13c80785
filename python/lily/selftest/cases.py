"""Kernel cases: for each operation of docs/design/kernels.md a small problem, made from a seed, with what it writes.

Each has odd numbers of rows and, in the prefill forms, rows on both sides of a chunk of 64. References of all outputs
are stored beside this file; tools/make_selftest.py computes them in float64.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .numbers import Numbers
from .tables import (
    BIAS_ENTRY,
    EXPERT_BLOCK,
    FLAGS,
    FORMATS,
    PAGE_TOKENS,
    SAMPLE_BLOCK,
    SAMPLE_RESULT,
    SAMPLE_ROW,
    SMALL,
    Array,
    pack,
    step_rows,
    unwritten,
)

# Budgets of docs/design/model.md, section 6, in float32 mode. 0 means exactly.
COPY: Final = 2e-7
ROWS: Final = 1e-6
PRODUCT: Final = 2e-6
CORE: Final = 2e-6
SUM: Final = 3e-6
CHUNK: Final = 5e-6

STEP: Final = 3  # rows of a step
TILE: Final = 70  # rows of a prefill chunk


@dataclass(frozen=True, slots=True)
class Output:
    """What a kernel writes: the part `at` of buffer number `index`, and how far from the reference it may be.

    derive: of that part, where devices may write different numbers that mean the same.
    """

    index: int
    tolerance: float
    at: Any = ...
    derive: Callable[[Array], Array] | None = None

    def of(self, buffers: Sequence[Array]) -> Array:
        part = np.asarray(buffers[self.index][self.at])
        return part if self.derive is None else self.derive(part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One dispatch. kernel: the name of its float32 form. inputs: by name, for the reference.

    buffers: as the kernel binds them, before it runs, in float32; where other precisions keep halves, halves can hold
    the values.
    """

    kernel: str
    sizes: Mapping[str, int]
    args: bytes
    extent: tuple[int, int, int]
    buffers: list[Array]
    outputs: Mapping[str, Output]
    inputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Weight:
    """A quantised weight [..., rows, columns]: what a kernel binds, and its exact values."""

    ranges: list[Array]  # codes u8; scales and biases u16 (the bits of a BF16) or f32
    dense: NDArray[np.float64]


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
        yield _experts_down(_numbers(kernel), kernel, form, shared_form)


def _numbers(name: str) -> Numbers:
    return Numbers(zlib.crc32(name.encode()))


def _weight(n: Numbers, form: str, *shape: int) -> Weight:
    bits, is_wide = int(form[1]), form.endswith("w")
    top = 2**bits - 1
    codes = n.integers(2**bits, *shape).astype(np.uint8)
    pairs = (*shape[:-1], shape[-1] // 64)
    signs = 1.0 - 2.0 * n.integers(2, *pairs)
    scales = (signs * n.uniform(*pairs, low=0.5, high=1.5) / (4 * top)).astype(np.float32)
    biases = (-scales * top * n.uniform(*pairs, low=0.25, high=0.75)).astype(np.float32)
    if not is_wide:
        scales, biases = (_as_bf16(values) for values in (scales, biases))
    dense = scales.astype(np.float64).repeat(64, axis=-1) * codes + biases.astype(np.float64).repeat(64, axis=-1)
    stored = [pair if is_wide else (pair.view(np.uint32) >> 16).astype(np.uint16) for pair in (scales, biases)]
    packed = codes if bits == 8 else codes[..., 0::2] | (codes[..., 1::2] << 4)
    return Weight([np.ascontiguousarray(packed), *stored], dense)


def _as_bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def _gain(n: Numbers, width: int) -> NDArray[np.float32]:
    return n.uniform(width, low=0.5, high=1.5)


# Projections of the step program.


def _embed(n: Numbers, kernel: str, form: str) -> Case:
    rows, is_tile = (TILE, True) if kernel.endswith("_tile") else (STEP, False)
    w = _weight(n, form, 97, 64)
    tokens = n.integers(97, rows)
    step = [] if is_tile else [step_rows(rows, token_slot=np.arange(rows)[::-1].tolist())]
    buffers = [*step, tokens, *w.ranges, unwritten(rows, 64)]
    return Case(
        kernel=kernel, sizes=SMALL | {"vocab_size": 97}, args=pack(rows), extent=(rows, 1, 1), buffers=buffers,
        outputs={"x": Output(len(buffers) - 1, COPY)}, inputs={"w": w, "tokens": tokens if is_tile else tokens[::-1]},
    )  # fmt: skip


def _projection(parts: list[int], *, gained: bool, names: list[str]) -> Callable[[Numbers, str, str], Case]:
    """Outputs [rows, part] side by side: W · norm(x) in the step form, W · y in the prefill form."""

    def build(n: Numbers, kernel: str, form: str) -> Case:
        rows = STEP if gained else TILE
        w = _weight(n, form, sum(parts), 64)
        x = n.uniform(rows, 64) if gained else n.operand(rows, 64)
        gain = _gain(n, 64)
        front = [x, gain] if gained else [x]
        outputs = [unwritten(rows, part) for part in parts]
        return Case(
            kernel=kernel, sizes=SMALL, args=pack(rows), extent=(sum(parts), rows, 1),
            buffers=[*front, *w.ranges, *outputs],
            outputs={name: Output(len(front) + 3 + i, PRODUCT) for i, name in enumerate(names)},
            inputs={"w": w, "x": x, "gain": gain if gained else None, "parts": parts},
        )  # fmt: skip

    return build


def _residual(rows: int) -> Callable[[Numbers, str, str], Case]:
    """x += W · y."""

    def build(n: Numbers, kernel: str, form: str) -> Case:
        w, y, x = _weight(n, form, 64, 256), n.operand(rows, 256), n.uniform(rows, 64)
        return Case(
            kernel=kernel, sizes=SMALL, args=pack(rows), extent=(64, rows, 1), buffers=[y, *w.ranges, x],
            outputs={"x": Output(4, PRODUCT)}, inputs={"w": w, "y": y, "x": x.copy()},
        )  # fmt: skip

    return build


def _gdn_out(n: Numbers, kernel: str, form: str) -> Case:
    w, o, z = _weight(n, form, 64, 256), n.uniform(STEP, 4, 64), n.operand(STEP, 4, 64, low=-4, high=4)
    gain, x = _gain(n, 64), n.uniform(STEP, 64)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(STEP), extent=(64, STEP, 1), buffers=[o, z, gain, *w.ranges, x],
        outputs={"x": Output(6, PRODUCT)}, inputs={"w": w, "o": o, "z": z, "gain": gain, "x": x.copy()},
    )  # fmt: skip


def _shared_up(n: Numbers, kernel: str, form: str) -> Case:
    is_tile = kernel.endswith("_tile")
    rows = TILE if is_tile else STEP
    gate, up, gain = _weight(n, form, 64, 64), _weight(n, form, 64, 64), _gain(n, 64)
    x = n.operand(rows, 64) if is_tile else n.uniform(rows, 64)
    front = [x] if is_tile else [x, gain]
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(rows), extent=(64, rows, 1),
        buffers=[*front, *gate.ranges, *up.ranges, unwritten(rows, 64)],
        outputs={"hs": Output(len(front) + 6, SUM)},
        inputs={"gate": gate, "up": up, "x": x, "gain": None if is_tile else gain},
    )  # fmt: skip


def _shared_down(n: Numbers, kernel: str, form: str) -> Case:
    w, hs = _weight(n, form, 64, 64), n.operand(TILE, 64)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(64, TILE, 1), buffers=[hs, *w.ranges, unwritten(TILE, 64)],
        outputs={"s": Output(4, PRODUCT)}, inputs={"w": w, "x": hs, "gain": None, "parts": [64]},
    )  # fmt: skip


def _lm_head(n: Numbers, kernel: str, form: str) -> Case:
    w, x, gain = _weight(n, form, 257, 64), n.uniform(STEP, 64), _gain(n, 64)
    step = step_rows(STEP, timeline=[2, 3, 0], wants_logits=[1, 0, 1])
    buffers = [step, x, gain, *w.ranges, unwritten(4, 257), np.zeros(1, FLAGS)]
    return Case(
        kernel=kernel, sizes=SMALL | {"vocab_size": 257}, args=pack(STEP), extent=(257, STEP, 1), buffers=buffers,
        outputs={"logits": Output(6, PRODUCT, np.s_[[2, 0]]), "nan": Output(7, 0, "nan")},
        inputs={"w": w, "x": x[[0, 2]], "gain": gain},
    )  # fmt: skip


# Attention.


def rope_table(rotary_dim: int, theta: float) -> NDArray[np.float32]:
    """[rotary_dim / 2][2]: inverse frequencies in turns as a high and a low part."""
    turns = theta ** (-np.arange(rotary_dim // 2) * 2.0 / rotary_dim) / (2 * np.pi)
    high = turns.astype(np.float32)
    return np.stack([high, (turns - high).astype(np.float32)], -1)


THETA: Final = 1e7


def _attn_prep(is_tile: bool) -> Callable[[Numbers, str], Case]:
    def build(n: Numbers, kernel: str) -> Case:
        if is_tile:
            rows, step = 9, step_rows(1, position=252, page_row=1)
            places = [(252 + row, 1) for row in range(rows)]
        else:
            places = [(511, 0), (3, 1), (700, 2)]
            rows = len(places)
            step = step_rows(rows, position=[p for p, _ in places], page_row=[r for _, r in places])
        sizes = SMALL | {"num_attention_layers": 2, "max_pages": 3}
        q, k, v = n.operand(rows, 4, 64), n.operand(rows, 2, 64), n.operand(rows, 2, 64)
        q_gain, k_gain = _gain(n, 64), _gain(n, 64)
        pages = n.permutation(9).reshape(3, 3)
        kv = unwritten(9, 2, 2, 2, PAGE_TOKENS, 64)
        at = tuple(np.array(values) for values in zip(*((pages[r, p // 256], p % 256) for p, r in places), strict=True))
        return Case(
            kernel=kernel, sizes=sizes, args=pack(rows, 1), extent=(6, rows, 1),
            buffers=[step, q, k, v, q_gain, k_gain, rope_table(16, THETA), pages, kv],
            outputs={
                "q": Output(1, ROWS),
                "k": Output(8, ROWS, np.s_[at[0], 1, 0, :, at[1]]),
                "v": Output(8, 0, np.s_[at[0], 1, 1, :, at[1]]),
            },
            inputs={"q": q.copy(), "k": k, "v": v, "q_gain": q_gain, "k_gain": k_gain,
                    "positions": [position for position, _ in places]},
        )  # fmt: skip

    return build


def _paged(n: Numbers, lengths: list[int]) -> tuple[dict[str, int], Array, Array, list[tuple[Array, Array]]]:
    """Sizes, page table, pool and each row's k, v [n, Hkv, D]; the rest of the pool is NaN. Layer 1 of 2."""
    sizes = SMALL | {"num_attention_layers": 2, "max_pages": 3}
    pages = n.permutation(3 * len(lengths)).reshape(len(lengths), 3)
    pool = unwritten(3 * len(lengths), 2, 2, 2, PAGE_TOKENS, 64)
    rows = []
    for row, length in enumerate(lengths):
        k, v = n.operand(length, 2, 64, low=-2, high=2), n.operand(length, 2, 64)
        for position in range(length):
            page = pages[row, position // PAGE_TOKENS]
            pool[page, 1, 0, :, position % PAGE_TOKENS], pool[page, 1, 1, :, position % PAGE_TOKENS] = (
                k[position],
                v[position],
            )
        rows.append((k, v))
    return sizes, pages, pool, rows


POSITIONS: Final = [260, 300, 383]
SPLITS, KEYS_PER_SPLIT = 3, 128


def _attn_split(n: Numbers, kernel: str) -> Case:
    """Which maximum leaves the sums is the device's choice: compared are the average and the logarithm of the sum."""
    sizes, pages, pool, rows = _paged(n, [p + 1 for p in POSITIONS])
    q = n.operand(STEP, 4, 64, low=-2, high=2)
    step = step_rows(STEP, position=POSITIONS, page_row=[0, 1, 2])
    return Case(
        kernel=kernel, sizes=sizes, args=pack(STEP, 1, SPLITS, KEYS_PER_SPLIT), extent=(2, SPLITS, STEP),
        buffers=[step, q, pages, pool, unwritten(STEP, 4, SPLITS, 66)],
        outputs={"average": Output(4, CORE, derive=lambda p: p[..., :64] / p[..., 65:]),
                 "log_sum": Output(4, CORE, derive=lambda p: p[..., 64] + np.log(p[..., 65]))},
        inputs={"q": q, "rows": rows},
    )  # fmt: skip


def _attn_combine(n: Numbers, kernel: str) -> Case:
    partial, gate = n.uniform(STEP, 4, SPLITS, 66), n.operand(STEP, 4, 64, low=-4, high=4)
    partial[..., 65] = n.uniform(STEP, 4, SPLITS, low=1, high=50)
    partial[0, :, 1:, 64], partial[0, :, 1:, 65] = -1e30, 0  # empty splits
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(STEP, SPLITS), extent=(4, STEP, 1),
        buffers=[partial, gate, unwritten(STEP, 4, 64)],
        outputs={"y": Output(2, CORE)}, inputs={"partial": partial, "gate": gate},
    )  # fmt: skip


def _attn_prefill(n: Numbers, kernel: str) -> Case:
    position, first_row = 220, 128  # the second piece of a chunk
    sizes, pages, pool, rows = _paged(n, [position + TILE])
    q, gate = n.operand(TILE, 4, 64, low=-2, high=2), n.operand(TILE, 4, 64)
    return Case(
        kernel=kernel, sizes=sizes, args=pack(TILE, 1, first_row), extent=(2, TILE, 1),
        buffers=[step_rows(1, position=position - first_row), q, gate, pages, pool, unwritten(TILE, 4, 64)],
        outputs={"y": Output(5, CORE)},
        inputs={"q": q, "gate": gate, "k": rows[0][0], "v": rows[0][1], "position": position},
    )  # fmt: skip


# The delta net. Layer 1 of 2; slot 0 is empty.

_DELTA: Final = SMALL | {"num_linear_layers": 2}
CHANNELS: Final = 2 * 2 * 64 + 4 * 64


def _delta_layer(n: Numbers) -> dict[str, Array]:
    layer = {
        "conv_w": n.uniform(CHANNELS, 4),
        "a_log": n.uniform(4),
        "dt_bias": n.uniform(4, low=-3, high=-1),
        "conv_state": n.uniform(6, 2, 3, CHANNELS),
        "state": n.uniform(6, 2, 4, 64, 64),
    }
    layer["conv_state"][0] = layer["state"][0] = 0
    return layer


def _gdn_step(n: Numbers, kernel: str) -> Case:
    layer = _delta_layer(n)
    qkv, ba = n.operand(STEP, CHANNELS), n.uniform(STEP, 2, 4, low=-2, high=2)
    step = step_rows(STEP, slot_in=[3, 0, 1], slot_out=[4, 1, 2])  # row 2 goes on where row 1 ends
    before = {name: values.copy() for name, values in layer.items()}
    out = np.s_[[4, 1, 2], 1]
    return Case(
        kernel=kernel, sizes=_DELTA, args=pack(STEP, 1), extent=(64, 4, 1),
        buffers=[step, qkv, ba, layer["conv_w"], layer["a_log"], layer["dt_bias"], layer["conv_state"], layer["state"],
                 unwritten(STEP, 4, 64)],
        outputs={"o": Output(8, SUM), "conv_state": Output(6, 0, out), "state": Output(7, SUM, out)},
        inputs=before | {"qkv": qkv, "ba": ba},
    )  # fmt: skip


def _gdn_conv(n: Numbers, kernel: str) -> Case:
    layer = _delta_layer(n)
    qkv, ba = n.operand(TILE, CHANNELS), n.uniform(TILE, 2, 4, low=-4, high=4)
    before = {name: values.copy() for name, values in layer.items()}
    return Case(
        kernel=kernel, sizes=_DELTA, args=pack(TILE, 1), extent=(2, TILE, 1),
        buffers=[step_rows(1, slot_in=3, slot_out=1), qkv, ba, layer["conv_w"], layer["a_log"], layer["dt_bias"],
                 layer["conv_state"], unwritten(TILE, 2, 64), unwritten(TILE, 2, 64), unwritten(TILE, 4, 64),
                 unwritten(TILE, 4), unwritten(TILE, 4)],
        outputs={"conv_state": Output(6, 0, np.s_[1, 1]),
                 **{name: Output(7 + i, ROWS) for i, name in enumerate(("q", "k", "v", "g", "beta"))}},
        inputs=before | {"qkv": qkv, "ba": ba},
    )  # fmt: skip


def _delta_inputs(n: Numbers) -> dict[str, Array]:
    unit = (3 / 64) ** 0.5  # rows of 64 values have a length near 1
    return {
        "q": n.uniform(TILE, 2, 64) * np.float32(unit / 8),
        "k": n.uniform(TILE, 2, 64) * np.float32(unit),
        "v": n.uniform(TILE, 4, 64),
        "g": n.uniform(TILE, 4, low=-0.2, high=0),
        "beta": n.uniform(TILE, 4, low=0.05, high=0.95),
    }


def _gdn_chunk(n: Numbers, kernel: str) -> Case:
    inputs = _delta_inputs(n)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(4, 2, 1),
        buffers=[*inputs.values(), unwritten(TILE, 4, 64), unwritten(TILE, 4, 64), unwritten(TILE, 4, 64)],
        outputs={name: Output(5 + i, CHUNK) for i, name in enumerate(("u", "w", "qk"))}, inputs=inputs,
    )  # fmt: skip


def _gdn_scan(n: Numbers, kernel: str) -> Case:
    """u, w and the lower triangle of qk are any numbers here: the kernel's own part is the recurrence over chunks."""
    inputs = _delta_inputs(n)
    parts = {"u": n.uniform(TILE, 4, 64), "w": n.uniform(TILE, 4, 64, low=-0.1, high=0.1), "qk": n.uniform(TILE, 4, 64)}
    parts["qk"] *= np.arange(64) <= (np.arange(TILE) % 64)[:, None, None]
    state = _delta_layer(n)["state"]
    inputs |= parts | {"state": state.copy()}
    return Case(
        kernel=kernel, sizes=_DELTA, args=pack(TILE, 1), extent=(64, 4, 1),
        buffers=[step_rows(1, slot_in=3, slot_out=1), inputs["q"], inputs["k"], *parts.values(), inputs["g"], state,
                 unwritten(TILE, 4, 64)],
        outputs={"o": Output(8, CHUNK), "state": Output(7, CHUNK, np.s_[1, 1])}, inputs=inputs,
    )  # fmt: skip


def _gated_norm(n: Numbers, kernel: str) -> Case:
    o, z, gain = n.uniform(TILE, 4, 64), n.operand(TILE, 4, 64, low=-4, high=4), _gain(n, 64)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(TILE, 1, 1), buffers=[o, z, gain, unwritten(TILE, 256)],
        outputs={"y": Output(3, ROWS)}, inputs={"o": o, "z": z, "gain": gain},
    )  # fmt: skip


def _rms_norm(n: Numbers, kernel: str) -> Case:
    x, gain = n.uniform(TILE, 64), _gain(n, 64)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(TILE, 1, 1), buffers=[x, gain, unwritten(TILE, 64)],
        outputs={"y": Output(2, ROWS)}, inputs={"x": x, "gain": gain},
    )  # fmt: skip


# Experts.


def _experts_up(n: Numbers, kernel: str, form: str) -> Case:
    gate, up = _weight(n, form, 8, 64, 64), _weight(n, form, 8, 64, 64)
    x, gain, logits, slot = n.uniform(STEP, 64), _gain(n, 64), n.uniform(STEP, 8, low=-3, high=3), n.permutation(8)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(STEP), extent=(64, 2, STEP),
        buffers=[x, gain, logits, slot, *gate.ranges, *up.ranges, unwritten(STEP, 2, 64),
                 np.zeros((STEP, 2), np.uint32), unwritten(STEP, 2), np.zeros(1, FLAGS)],
        outputs={"h": Output(10, SUM), "topk_ids": Output(11, 0), "topk_weights": Output(12, ROWS),
                 "abort": Output(13, 0, "abort")},
        inputs={"gate": gate, "up": up, "x": x, "gain": gain, "logits": logits, "slot": slot},
    )  # fmt: skip


def _chosen(n: Numbers, rows: int) -> Array:
    """Two distinct experts of eight per row."""
    first, step = n.integers(8, rows), n.integers(7, rows) + 1
    return np.stack([first, (first + step) % 8], axis=1).astype(np.uint32)


def _experts_down(n: Numbers, kernel: str, form: str, shared_form: str) -> Case:
    down, shared = _weight(n, form, 8, 64, 64), _weight(n, shared_form, 64, 64)
    ids, weights, slot = _chosen(n, STEP), n.uniform(STEP, 2, low=0.1, high=0.9), n.permutation(8)
    h, hs = n.operand(STEP, 2, 64), n.operand(STEP, 64)
    shared_gate, x = n.uniform(STEP, low=-3, high=3), n.uniform(STEP, 64)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(STEP), extent=(64, STEP, 1),
        buffers=[h, ids, weights, slot, *down.ranges, hs, *shared.ranges, shared_gate, x],
        outputs={"x": Output(12, SUM)},
        inputs={"h": h, "ids": ids, "weights": weights, "slot": slot, "down": down, "hs": hs, "shared": shared,
                "shared_gate": shared_gate, "x": x.copy()},
    )  # fmt: skip


def plan(ids: Array) -> tuple[Array, Array]:
    """`order` and `blocks` of eight experts, as moe_plan must write them."""
    flat = ids.reshape(-1)
    order = np.argsort(flat, kind="stable").astype(np.uint32)
    blocks, begin = [], 0
    for expert in range(8):
        end = begin + int((flat == expert).sum())
        blocks += [(expert, at, min(at + 32, end)) for at in range(begin, end, 32)]
        begin = end
    count = min(8, flat.size) + flat.size // 32
    blocks += [(0xFFFFFFFF, flat.size, flat.size)] * (count - len(blocks))
    return order, np.array(blocks, EXPERT_BLOCK)


def _experts_up_tile(n: Numbers, kernel: str, form: str) -> Case:
    gate, up, y, slot = _weight(n, form, 8, 64, 64), _weight(n, form, 8, 64, 64), n.operand(TILE, 64), n.permutation(8)
    ids = _chosen(n, TILE)
    order, blocks = plan(ids)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(64, len(blocks), 1),
        buffers=[y, order, blocks, slot, *gate.ranges, *up.ranges, unwritten(2 * TILE, 64), np.zeros(1, FLAGS)],
        outputs={"h": Output(10, SUM), "abort": Output(11, 0, "abort")},
        inputs={"gate": gate, "up": up, "y": y, "ids": ids, "slot": slot, "order": order},
    )  # fmt: skip


def _experts_down_tile(n: Numbers, kernel: str, form: str) -> Case:
    down, h, slot, ids = _weight(n, form, 8, 64, 64), n.operand(2 * TILE, 64), n.permutation(8), _chosen(n, TILE)
    order, blocks = plan(ids)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(64, len(blocks), 1),
        buffers=[h, order, blocks, slot, *down.ranges, unwritten(TILE, 2, 64)],
        outputs={"d": Output(7, SUM)}, inputs={"down": down, "h": h, "ids": ids, "slot": slot, "order": order},
    )  # fmt: skip


def _topk(n: Numbers, kernel: str) -> Case:
    logits = np.floor(n.uniform(TILE, 8, low=-8, high=8)).astype(np.float32) / 4  # with ties
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(TILE, 1, 1),
        buffers=[logits, np.zeros((TILE, 2), np.uint32), unwritten(TILE, 2)],
        outputs={"topk_ids": Output(1, 0), "topk_weights": Output(2, ROWS)}, inputs={"logits": logits},
    )  # fmt: skip


def _moe_plan(n: Numbers, kernel: str) -> Case:
    ids = _chosen(n, TILE)
    blocks = np.zeros(8 + 2 * TILE // 32, EXPERT_BLOCK)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(1, 1, 1),
        buffers=[ids, np.zeros(2 * TILE, np.uint32), blocks],
        outputs={"order": Output(1, 0), **{name: Output(2, 0, name) for name in EXPERT_BLOCK.names or ()}},
        inputs={"ids": ids},
    )  # fmt: skip


def _moe_combine(n: Numbers, kernel: str) -> Case:
    d, weights, s = n.uniform(TILE, 2, 64), n.uniform(TILE, 2, low=0.1, high=0.9), n.uniform(TILE, 64)
    shared_gate, x = n.uniform(TILE, low=-3, high=3), n.uniform(TILE, 64)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(TILE, 1, 1), buffers=[d, weights, s, shared_gate, x],
        outputs={"x": Output(4, SUM)},
        inputs={"d": d, "weights": weights, "s": s, "shared_gate": shared_gate, "x": x.copy()},
    )  # fmt: skip


# Sampling: a greedy row with a bias, one with a mask and penalties, one with top_k, top_p and min_p.

VOCAB: Final = 1500
SEEDS: Final = (1, 2, 3)


def _sampling(n: Numbers) -> dict[str, Array]:
    rows = np.zeros(STEP, SAMPLE_ROW)
    rows["temperature"], rows["top_p"], rows["repetition_penalty"] = [0, 0.75, 0.5], [1, 1, 0.9], 1
    rows["top_k"], rows["min_p"] = [0, 0, 40], [0, 0, 0.05]
    rows["presence_penalty"][1], rows["frequency_penalty"][1], rows["repetition_penalty"][1] = 0.5, 0.25, 1.25
    rows["uses_counts"], rows["uses_mask"] = [0, 1, 0], [0, 1, 0]
    rows["seed_low"], rows["token_slot"] = SEEDS, [0, 1, 2]
    rows["num_logprobs"], rows["wants_logprob"] = [5, 0, 20], 1
    rows["bias_end"] = [2, 2, 2]
    rows["bias_begin"] = [0, 2, 2]
    counts = np.zeros((STEP, VOCAB), np.uint32)
    counts[1, 10:20], counts[1, 15:30] = 3, 1 << 31
    return {
        "step": step_rows(STEP, position=[10, 11, 12], timeline=[0, 1, 2], sample_row=[0, 1, 2], wants_logits=1),
        "rows": rows,
        "logits": n.uniform(STEP, VOCAB, low=-6, high=6),
        "counts": counts,
        "bias": np.array([(3, 9.0), (1200, -2.5), (0, 0)], BIAS_ENTRY),
        "mask": n.words(STEP * -(-VOCAB // 32)).astype(np.uint32).reshape(STEP, -1),
    }


def _sample_scan(n: Numbers, kernel: str) -> Case:
    inputs = _sampling(n)
    return Case(
        kernel=kernel, sizes=SMALL | {"vocab_size": VOCAB}, args=pack(STEP), extent=(VOCAB, STEP, 1),
        buffers=[*inputs.values(), unwritten(STEP, VOCAB), np.zeros((STEP, 2), SAMPLE_BLOCK)],
        outputs={"adjusted": Output(6, ROWS, np.s_[[0, 2]]), "raw_max": Output(7, 0, "raw_max"),
                 "raw_sum": Output(7, ROWS, "raw_sum"), "best": Output(7, ROWS, "best"),
                 "best_id": Output(7, 0, "best_id")},
        inputs=inputs,
    )  # fmt: skip


def _sample_pick(n: Numbers, kernel: str) -> Case:
    inputs = _sampling(n)
    logits, step, rows = inputs["logits"], inputs["step"], inputs["rows"]
    rows["uses_counts"] = rows["uses_mask"] = 0
    rows["bias_end"] = rows["bias_begin"] = 0
    adjusted, blocks = logits.copy(), np.zeros((STEP, 2), SAMPLE_BLOCK)
    for b in range(2):
        part = logits[:, 1024 * b : 1024 * (b + 1)]
        blocks["raw_max"][:, b] = blocks["best"][:, b] = part.max(axis=1)
        blocks["raw_sum"][:, b] = np.exp(part.astype(np.float64) - part.max(axis=1, keepdims=True)).sum(axis=1)
        blocks["best_id"][:, b] = 1024 * b + part.argmax(axis=1)
    return Case(
        kernel=kernel, sizes=SMALL | {"vocab_size": VOCAB}, args=pack(STEP), extent=(STEP, 1, 1),
        buffers=[step, rows, logits, adjusted, blocks, inputs["counts"], np.zeros(STEP, np.uint32),
                 np.zeros(STEP, SAMPLE_RESULT)],
        outputs={"tokens": Output(6, 0), "token_id": Output(7, 0, "token_id"), "logprob": Output(7, ROWS, "logprob"),
                 "num_logprobs": Output(7, 0, "num_logprobs"), "top_ids": Output(7, 0, "top_ids"),
                 "top_logprobs": Output(7, ROWS, "top_logprobs")},
        inputs=inputs,
    )  # fmt: skip


_PLAIN: Final[Mapping[str, Callable[[Numbers, str], Case]]] = {
    "rms_norm": _rms_norm, "gdn_step": _gdn_step, "gdn_conv": _gdn_conv, "gdn_chunk": _gdn_chunk, "gdn_scan": _gdn_scan,
    "gated_norm": _gated_norm, "attn_prep": _attn_prep(False), "attn_prep+_tile": _attn_prep(True),
    "attn_split": _attn_split, "attn_combine": _attn_combine,
    "attn_prefill": _attn_prefill, "topk": _topk, "moe_plan": _moe_plan, "moe_combine": _moe_combine,
    "sample_scan": _sample_scan, "sample_pick": _sample_pick,
}  # fmt: skip

_GDN_IN = [CHANNELS, 256, 8]
_ATTN_IN = [256, 256, 128, 128]
_WEIGHTED: Final[Mapping[str, Callable[[Numbers, str, str], Case]]] = {
    "embed": _embed,
    "embed+_tile": _embed,
    "gdn_in": _projection(_GDN_IN, gained=True, names=["qkv", "z", "ba"]),
    "gdn_in+_tile": _projection(_GDN_IN, gained=False, names=["qkv", "z", "ba"]),
    "attn_in": _projection(_ATTN_IN, gained=True, names=["q", "gate", "k", "v"]),
    "attn_in+_tile": _projection(_ATTN_IN, gained=False, names=["q", "gate", "k", "v"]),
    "router": _projection([8, 1], gained=True, names=["router_logits", "shared_gate"]),
    "router+_tile": _projection([8, 1], gained=False, names=["router_logits", "shared_gate"]),
    "gdn_out": _gdn_out,
    "gdn_out+_tile": _residual(TILE),
    "attn_out": _residual(STEP),
    "attn_out+_tile": _residual(TILE),
    "shared_up": _shared_up,
    "shared_up+_tile": _shared_up,
    "shared_down+_tile": _shared_down,
    "experts_up": _experts_up,
    "experts_up+_tile": _experts_up_tile,
    "experts_down+_tile": _experts_down_tile,
    "lm_head": _lm_head,
}
