"""Attention of a prefill chunk over pages that lie anywhere in the pool."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.harness import NANO, PAGE_TOKENS, REAL, Array, Run, normal, pack, rms_ratio, step_rows, unwritten
from tests.oracles.attention import attend

BUDGET = 2e-6
SIZES = {
    "nano": NANO,
    "real": REAL | {"num_attention_layers": 2, "max_pages": 8},
    "three heads a group": NANO | {"num_attention_heads": 6},
}
PAGE_ROW = 1


def paged(rng: np.random.Generator, sizes: Mapping[str, int], k: Array, v: Array, layer: int) -> tuple[Array, Array]:
    """Scatters k and v [n, Hkv, D] over shuffled pages; everything else in the pool is NaN."""
    n, heads, width = k.shape
    num_pages = -(-n // PAGE_TOKENS)
    pool = np.full((num_pages + 2, sizes["num_attention_layers"], 2, heads, PAGE_TOKENS, width), np.nan, np.float32)
    table = np.full((2, sizes["max_pages"]), 0xFFFFFFFF, np.uint32)
    table[PAGE_ROW, :num_pages] = rng.permutation(num_pages + 2)[:num_pages]
    for position in range(n):
        page = table[PAGE_ROW, position // PAGE_TOKENS]
        pool[page, layer, 0, :, position % PAGE_TOKENS] = k[position]
        pool[page, layer, 1, :, position % PAGE_TOKENS] = v[position]
    return table, pool


def check(
    run: Run, sizes: Mapping[str, int], m: int, position: int, score_scale: float = 1.0, first_row: int = 0
) -> None:
    """m rows from `position` on, which are those of a chunk from `first_row` on."""
    rng = np.random.default_rng([m, position])
    heads, kv_heads, width = (sizes[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    q, gate = normal(rng, m, heads, width, scale=score_scale), normal(rng, m, heads, width)
    k, v = normal(rng, position + m, kv_heads, width), normal(rng, position + m, kv_heads, width)
    q, gate, k, v = (run.rounded(values) for values in (q, gate, k, v))
    layer = sizes["num_attention_layers"] - 1
    table, pool = paged(rng, sizes, k, v, layer)
    y = unwritten(m, heads, width)
    step = step_rows(1, position=position - first_row, page_row=PAGE_ROW)
    run("attn_prefill_f32", sizes, pack(m, layer, first_row), [step, q, gate, table, pool, y], (kv_heads, m, 1))
    expected = attend(q, gate, k, v, position)
    assert rms_ratio(y, expected) < run.bound(BUDGET)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("m", [1, 2, 3, 7, 16, 17, 63, 64, 65, 200])
def test_first_chunk(run: Run, size: str, m: int) -> None:
    check(run, SIZES[size], m, 0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("m", "position"), [(1, 1), (1, 63), (1, 255), (1, 256), (2, 255), (30, 500), (65, 447), (17, 1000)]
)
def test_later_chunk(run: Run, size: str, m: int, position: int) -> None:
    check(run, SIZES[size], m, position)


def test_a_piece_of_a_chunk(run: Run) -> None:
    check(run, NANO, 20, 300, first_row=256)


def test_sharp_scores(run: Run) -> None:
    """The largest score moves often and some weights vanish."""
    check(run, NANO, 40, 300, score_scale=30.0)


@settings(max_examples=20, deadline=None)
@given(m=st.integers(1, 40), position=st.integers(0, 600))
def test_any_position(run: Run, m: int, position: int) -> None:
    check(run, NANO, m, position)
