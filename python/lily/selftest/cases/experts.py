"""Cases of the experts: choice, plan, products and sum."""

from __future__ import annotations

import numpy as np

from ..numbers import Numbers
from ..tables import EXPERT_BLOCK, FLAGS, SMALL, Array, pack, unwritten
from ..weights import weight
from .case import ROWS, STEP, SUM, TILE, Case, Output, gain_of


def experts_up(n: Numbers, kernel: str, form: str) -> Case:
    gate, up = weight(n, form, 8, 64, 64), weight(n, form, 8, 64, 64)
    x, gain, logits, slot = n.uniform(STEP, 64), gain_of(n, 64), n.uniform(STEP, 8, low=-3, high=3), n.permutation(8)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(STEP), extent=(64, 2, STEP),
        buffers=[x, gain, logits, slot, *gate.ranges, *up.ranges, unwritten(STEP, 2, 64),
                 np.zeros((STEP, 2), np.uint32), unwritten(STEP, 2), np.zeros(1, FLAGS)],
        outputs={"h": Output(10, SUM), "topk_ids": Output(11, 0), "topk_weights": Output(12, ROWS),
                 "abort": Output(13, 0, "abort")},
        inputs={"gate": gate, "up": up, "x": x, "gain": gain, "logits": logits, "slot": slot},
    )  # fmt: skip


def chosen(n: Numbers, rows: int) -> Array:
    """Two distinct experts of eight per row."""
    first, step = n.integers(8, rows), n.integers(7, rows) + 1
    return np.stack([first, (first + step) % 8], axis=1).astype(np.uint32)


def experts_down(n: Numbers, kernel: str, form: str, shared_form: str) -> Case:
    down, shared = weight(n, form, 8, 64, 64), weight(n, shared_form, 64, 64)
    ids, weights, slot = chosen(n, STEP), n.uniform(STEP, 2, low=0.1, high=0.9), n.permutation(8)
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


def experts_up_tile(n: Numbers, kernel: str, form: str) -> Case:
    gate, up, y, slot = weight(n, form, 8, 64, 64), weight(n, form, 8, 64, 64), n.operand(TILE, 64), n.permutation(8)
    ids = chosen(n, TILE)
    order, blocks = plan(ids)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(64, len(blocks), 1),
        buffers=[y, order, blocks, slot, *gate.ranges, *up.ranges, unwritten(2 * TILE, 64), np.zeros(1, FLAGS)],
        outputs={"h": Output(10, SUM), "abort": Output(11, 0, "abort")},
        inputs={"gate": gate, "up": up, "y": y, "ids": ids, "slot": slot, "order": order},
    )  # fmt: skip


def experts_down_tile(n: Numbers, kernel: str, form: str) -> Case:
    down, h, slot, ids = weight(n, form, 8, 64, 64), n.operand(2 * TILE, 64), n.permutation(8), chosen(n, TILE)
    order, blocks = plan(ids)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(64, len(blocks), 1),
        buffers=[h, order, blocks, slot, *down.ranges, unwritten(TILE, 2, 64)],
        outputs={"d": Output(7, SUM)}, inputs={"down": down, "h": h, "ids": ids, "slot": slot, "order": order},
    )  # fmt: skip


def topk(n: Numbers, kernel: str) -> Case:
    logits = np.floor(n.uniform(TILE, 8, low=-8, high=8)).astype(np.float32) / 4  # with ties
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(TILE, 1, 1),
        buffers=[logits, np.zeros((TILE, 2), np.uint32), unwritten(TILE, 2)],
        outputs={"topk_ids": Output(1, 0), "topk_weights": Output(2, ROWS)}, inputs={"logits": logits},
    )  # fmt: skip


def moe_plan(n: Numbers, kernel: str) -> Case:
    ids = chosen(n, TILE)
    blocks = np.zeros(8 + 2 * TILE // 32, EXPERT_BLOCK)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(1, 1, 1),
        buffers=[ids, np.zeros(2 * TILE, np.uint32), blocks],
        outputs={"order": Output(1, 0), **{name: Output(2, 0, name) for name in EXPERT_BLOCK.names or ()}},
        inputs={"ids": ids},
    )  # fmt: skip


def moe_combine(n: Numbers, kernel: str) -> Case:
    d, weights, s = n.uniform(TILE, 2, 64), n.uniform(TILE, 2, low=0.1, high=0.9), n.uniform(TILE, 64)
    shared_gate, x = n.uniform(TILE, low=-3, high=3), n.uniform(TILE, 64)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(TILE, 1, 1), buffers=[d, weights, s, shared_gate, x],
        outputs={"x": Output(4, SUM)},
        inputs={"d": d, "weights": weights, "s": s, "shared_gate": shared_gate, "x": x.copy()},
    )  # fmt: skip
