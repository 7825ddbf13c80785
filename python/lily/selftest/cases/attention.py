"""Cases of attention: rows of one step, and a prefill chunk over one stretch of its keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..numbers import Numbers
from ..tables import PAGE_TOKENS, SMALL, Array, pack, step_rows, unwritten
from .case import CORE, ROWS, STEP, TILE, Case, Output, gain_of


def rope_table(rotary_dim: int, theta: float) -> NDArray[np.float32]:
    """[rotary_dim / 2][2]: inverse frequencies in turns as a high and a low part."""
    turns = theta ** (-np.arange(rotary_dim // 2) * 2.0 / rotary_dim) / (2 * np.pi)
    high = turns.astype(np.float32)
    return np.stack([high, (turns - high).astype(np.float32)], -1)


THETA: Final = 1e7
PAGES: Final = 3  # of a row


def attn_prep(is_tile: bool) -> Callable[[Numbers, str], Case]:
    def build(n: Numbers, kernel: str) -> Case:
        if is_tile:
            rows, step = 9, step_rows(1, position=252, page_begin=PAGES)
            places = [(252 + row, 1) for row in range(rows)]
        else:
            places = [(511, 0), (3, 1), (700, 2)]
            rows = len(places)
            step = step_rows(rows, position=[p for p, _ in places], page_begin=[r * PAGES for _, r in places])
        sizes = SMALL | {"num_attention_layers": 2}
        q, k, v = n.operand(rows, 4, 64), n.operand(rows, 2, 64), n.operand(rows, 2, 64)
        q_gain, k_gain = gain_of(n, 64), gain_of(n, 64)
        pages = n.permutation(3 * PAGES).reshape(3, PAGES)
        kv = unwritten(3 * PAGES, 2, 2, 2, PAGE_TOKENS, 64)
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


def paged(n: Numbers, lengths: list[int]) -> tuple[dict[str, int], Array, Array, list[tuple[Array, Array]]]:
    """Sizes, page table, pool and each row's k, v [n, Hkv, D]; the rest of the pool is NaN. Layer 1 of 2."""
    sizes = SMALL | {"num_attention_layers": 2}
    pages = n.permutation(PAGES * len(lengths)).reshape(len(lengths), PAGES)
    pool = unwritten(PAGES * len(lengths), 2, 2, 2, PAGE_TOKENS, 64)
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


def attn_split(n: Numbers, kernel: str) -> Case:
    """Which maximum leaves the sums is the device's choice: compared are the average and the logarithm of the sum."""
    sizes, pages, pool, rows = paged(n, [p + 1 for p in POSITIONS])
    q = n.operand(STEP, 4, 64, low=-2, high=2)
    step = step_rows(STEP, position=POSITIONS, page_begin=[0, PAGES, 2 * PAGES], keys_per_split=KEYS_PER_SPLIT)
    return Case(
        kernel=kernel, sizes=sizes, args=pack(STEP, 1, SPLITS), extent=(2, SPLITS, STEP),
        buffers=[step, q, pages, pool, unwritten(STEP, 4, SPLITS, 66)],
        outputs={"average": Output(4, CORE, derive=lambda p: p[..., :64] / p[..., 65:]),
                 "log_sum": Output(4, CORE, derive=lambda p: p[..., 64] + np.log(p[..., 65]))},
        inputs={"q": q, "rows": rows},
    )  # fmt: skip


def attn_combine(n: Numbers, kernel: str) -> Case:
    partial, gate = n.uniform(STEP, 4, SPLITS, 66), n.operand(STEP, 4, 64, low=-4, high=4)
    partial[..., 65] = n.uniform(STEP, 4, SPLITS, low=1, high=50)
    partial[0, :, 1:, 64], partial[0, :, 1:, 65] = -1e30, 0  # empty splits
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(STEP, SPLITS), extent=(4, STEP, 1),
        buffers=[partial, gate, unwritten(STEP, 4, 64)],
        outputs={"y": Output(2, CORE)}, inputs={"partial": partial, "gate": gate},
    )  # fmt: skip


def attn_prefill(n: Numbers, kernel: str) -> Case:
    """The second stretch of keys: the first rows end in it, the others go on. As in attn_split any maximum will do."""
    position, first_key, num_keys = 480, PAGE_TOKENS, PAGE_TOKENS
    ending = first_key + num_keys - position
    sizes, pages, pool, rows = paged(n, [position + TILE])
    q, gate = n.operand(TILE, 4, 64, low=-2, high=2), n.operand(TILE, 4, 64)
    partial = n.uniform(TILE, 4, 66, low=-1, high=1)
    partial[..., 65] = n.uniform(TILE, 4, low=1, high=50)
    more = np.s_[ending:]
    return Case(
        kernel=kernel, sizes=sizes, args=pack(TILE, 1, first_key, num_keys), extent=(2, TILE, 2),
        buffers=[step_rows(1, position=position), q, gate, pages, pool, partial, unwritten(TILE, 4, 64)],
        outputs={"y": Output(6, CORE, np.s_[:ending]),
                 "average": Output(5, CORE, more, derive=lambda p: p[..., :64] / p[..., 65:]),
                 "log_sum": Output(5, CORE, more, derive=lambda p: p[..., 64] + np.log(p[..., 65]))},
        inputs={"q": q, "gate": gate, "k": rows[0][0], "v": rows[0][1], "partial": partial.copy(),
                "position": position, "first_key": first_key, "num_keys": num_keys},
    )  # fmt: skip
