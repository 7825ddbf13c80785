"""Cases of the products with one weight, of the embedding and of the norms before them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..numbers import Numbers
from ..tables import FLAGS, SMALL, pack, step_rows, unwritten
from ..weights import weight
from .case import COPY, PRODUCT, ROWS, STEP, SUM, TILE, Case, Output, gain_of


def embed(n: Numbers, kernel: str, form: str) -> Case:
    rows, is_tile = (TILE, True) if kernel.endswith("_tile") else (STEP, False)
    w = weight(n, form, 97, 64)
    tokens = n.integers(97, rows)
    step = [] if is_tile else [step_rows(rows, token_slot=np.arange(rows)[::-1].tolist())]
    buffers = [*step, tokens, *w.ranges, unwritten(rows, 64)]
    return Case(
        kernel=kernel, sizes=SMALL | {"vocab_size": 97}, args=pack(rows), extent=(rows, 1, 1), buffers=buffers,
        outputs={"x": Output(len(buffers) - 1, COPY)}, inputs={"w": w, "tokens": tokens if is_tile else tokens[::-1]},
    )  # fmt: skip


def projection(parts: list[int], *, gained: bool, names: list[str]) -> Callable[[Numbers, str, str], Case]:
    """Outputs [rows, part] side by side: W · norm(x) in the step form, W · y in the prefill form."""

    def build(n: Numbers, kernel: str, form: str) -> Case:
        rows = STEP if gained else TILE
        w = weight(n, form, sum(parts), 64)
        x = n.uniform(rows, 64) if gained else n.operand(rows, 64)
        gain = gain_of(n, 64)
        front = [x, gain] if gained else [x]
        outputs = [unwritten(rows, part) for part in parts]
        return Case(
            kernel=kernel, sizes=SMALL, args=pack(rows), extent=(sum(parts), rows, 1),
            buffers=[*front, *w.ranges, *outputs],
            outputs={name: Output(len(front) + 3 + i, PRODUCT) for i, name in enumerate(names)},
            inputs={"w": w, "x": x, "gain": gain if gained else None, "parts": parts},
        )  # fmt: skip

    return build


def residual(rows: int) -> Callable[[Numbers, str, str], Case]:
    """x += W · y."""

    def build(n: Numbers, kernel: str, form: str) -> Case:
        w, y, x = weight(n, form, 64, 256), n.operand(rows, 256), n.uniform(rows, 64)
        return Case(
            kernel=kernel, sizes=SMALL, args=pack(rows), extent=(64, rows, 1), buffers=[y, *w.ranges, x],
            outputs={"x": Output(4, PRODUCT)}, inputs={"w": w, "y": y, "x": x.copy()},
        )  # fmt: skip

    return build


def gdn_out(n: Numbers, kernel: str, form: str) -> Case:
    w, o, z = weight(n, form, 64, 256), n.uniform(STEP, 4, 64), n.operand(STEP, 4, 64, low=-4, high=4)
    gain, x = gain_of(n, 64), n.uniform(STEP, 64)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(STEP), extent=(64, STEP, 1), buffers=[o, z, gain, *w.ranges, x],
        outputs={"x": Output(6, PRODUCT)}, inputs={"w": w, "o": o, "z": z, "gain": gain, "x": x.copy()},
    )  # fmt: skip


def shared_up(n: Numbers, kernel: str, form: str) -> Case:
    is_tile = kernel.endswith("_tile")
    rows = TILE if is_tile else STEP
    gate, up, gain = weight(n, form, 64, 64), weight(n, form, 64, 64), gain_of(n, 64)
    x = n.operand(rows, 64) if is_tile else n.uniform(rows, 64)
    front = [x] if is_tile else [x, gain]
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(rows), extent=(64, rows, 1),
        buffers=[*front, *gate.ranges, *up.ranges, unwritten(rows, 64)],
        outputs={"hs": Output(len(front) + 6, SUM)},
        inputs={"gate": gate, "up": up, "x": x, "gain": None if is_tile else gain},
    )  # fmt: skip


def shared_down(n: Numbers, kernel: str, form: str) -> Case:
    w, hs = weight(n, form, 64, 64), n.operand(TILE, 64)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(64, TILE, 1), buffers=[hs, *w.ranges, unwritten(TILE, 64)],
        outputs={"s": Output(4, PRODUCT)}, inputs={"w": w, "x": hs, "gain": None, "parts": [64]},
    )  # fmt: skip


def lm_head(n: Numbers, kernel: str, form: str) -> Case:
    w, x, gain = weight(n, form, 257, 64), n.uniform(STEP, 64), gain_of(n, 64)
    step = step_rows(STEP, timeline=[2, 3, 0], wants_logits=[1, 0, 1])
    buffers = [step, x, gain, *w.ranges, unwritten(4, 257), np.zeros(1, FLAGS)]
    return Case(
        kernel=kernel, sizes=SMALL | {"vocab_size": 257}, args=pack(STEP), extent=(257, STEP, 1), buffers=buffers,
        outputs={"logits": Output(6, PRODUCT, np.s_[[2, 0]]), "nan": Output(7, 0, "nan")},
        inputs={"w": w, "x": x[[0, 2]], "gain": gain},
    )  # fmt: skip


def rms_norm(n: Numbers, kernel: str) -> Case:
    x, gain = n.uniform(TILE, 64), gain_of(n, 64)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(TILE, 1, 1), buffers=[x, gain, unwritten(TILE, 64)],
        outputs={"y": Output(2, ROWS)}, inputs={"x": x, "gain": gain},
    )  # fmt: skip
