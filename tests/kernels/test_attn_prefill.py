"""Attention of a prefill chunk over pages that lie anywhere in the pool."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.harness import NANO, PAGE_TOKENS, REAL, Array, Run, normal, pack, rms_ratio, step_rows, unwritten
from tests.oracles.attention import attend, sums

BUDGET = 2e-6
SIZES = {
    "nano": NANO,
    "real": REAL | {"num_attention_layers": 2},
    "three heads a group": NANO | {"num_attention_heads": 6},
}
TABLE_BEGIN = 5  # of the row's pages in the table


def paged(rng: np.random.Generator, sizes: Mapping[str, int], k: Array, v: Array, layer: int) -> tuple[Array, Array]:
    """Scatters k and v [n, Hkv, D] over shuffled pages; everything else in the pool is NaN."""
    n, heads, width = k.shape
    num_pages = -(-n // PAGE_TOKENS)
    pool = np.full((num_pages + 2, sizes["num_attention_layers"], 2, heads, PAGE_TOKENS, width), np.nan, np.float32)
    table = np.full(TABLE_BEGIN + num_pages + 1, 0xFFFFFFFF, np.uint32)
    table[TABLE_BEGIN:-1] = rng.permutation(num_pages + 2)[:num_pages]
    for position in range(n):
        page = table[TABLE_BEGIN + position // PAGE_TOKENS]
        pool[page, layer, 0, :, position % PAGE_TOKENS] = k[position]
        pool[page, layer, 1, :, position % PAGE_TOKENS] = v[position]
    return table, pool


class Chunk:
    """m rows from `position` on, and a dispatch a stretch of their keys."""

    def __init__(self, run: Run, sizes: Mapping[str, int], m: int, position: int, score_scale: float = 1.0) -> None:
        rng = np.random.default_rng([m, position])
        heads, kv_heads, width = (sizes[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        q, gate = normal(rng, m, heads, width, scale=score_scale), normal(rng, m, heads, width)
        k, v = normal(rng, position + m, kv_heads, width), normal(rng, position + m, kv_heads, width)
        self.q, self.gate, self.k, self.v = (run.rounded(values) for values in (q, gate, k, v))
        self.run, self.sizes, self.m, self.position = run, sizes, m, position
        self.layer = sizes["num_attention_layers"] - 1
        self.table, self.pool = paged(rng, sizes, self.k, self.v, self.layer)
        self.partial, self.y = unwritten(m, heads, width + 2), unwritten(m, heads, width)
        self.expected = attend(self.q, self.gate, self.k, self.v, position)

    def dispatch(self, first_key: int, num_keys: int) -> None:
        heads, kv_heads = self.sizes["num_attention_heads"], self.sizes["num_key_value_heads"]
        step = step_rows(1, position=self.position, page_begin=TABLE_BEGIN)
        buffers = [step, self.q, self.gate, self.table, self.pool, self.partial, self.y]
        args = pack(self.m, self.layer, first_key, num_keys)
        self.run("attn_prefill_f32", self.sizes, args, buffers, (kv_heads, self.m, heads // kv_heads))


def check(run: Run, sizes: Mapping[str, int], m: int, position: int, score_scale: float = 1.0) -> None:
    """All keys in one dispatch."""
    chunk = Chunk(run, sizes, m, position, score_scale)
    chunk.dispatch(0, -(-(position + m) // PAGE_TOKENS) * PAGE_TOKENS)
    assert rms_ratio(chunk.y, chunk.expected) < run.bound(BUDGET)
    assert np.isnan(chunk.partial).all()


def check_stretches(
    run: Run,
    sizes: Mapping[str, int],
    m: int,
    position: int,
    pages: int,
    score_scale: float = 1.0,
    budget: float = BUDGET,
) -> None:
    """The keys in stretches of so many pages, one more than there are: behind each the rows that see no more keys are
    ready, and the others' sums are those of the keys so far."""
    chunk, num_keys = Chunk(run, sizes, m, position, score_scale), pages * PAGE_TOKENS
    ready = 0
    for first_key in range(0, position + m + num_keys, num_keys):
        end = first_key + num_keys
        chunk.y[:ready], chunk.partial[:ready] = np.nan, np.nan  # neither read nor written any more
        chunk.dispatch(first_key, num_keys)
        before, ready = ready, min(max(end - position, 0), m)
        assert np.isnan(chunk.y[:before]).all() and np.isnan(chunk.y[ready:]).all()
        assert np.isnan(chunk.partial[:before]).all()
        if before < ready:
            assert rms_ratio(chunk.y[before:ready], chunk.expected[before:ready]) < run.bound(budget)
        if ready < m:
            partial, (average, log_sum) = chunk.partial[ready:], sums(chunk.q[ready:], chunk.k[:end], chunk.v[:end])
            assert rms_ratio(partial[..., :-2] / partial[..., -1:], average) < run.bound(budget)
            assert rms_ratio(partial[..., -2] + np.log(partial[..., -1]), log_sum) < run.bound(budget)
    assert ready == m


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


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("m", "position", "pages"),
    [(16, 1000, 1), (17, 250, 1), (40, 511, 1), (7, 1020, 2), (1, 255, 1), (1, 256, 1), (300, 0, 1), (65, 447, 3)],
)
def test_stretches_of_keys(run: Run, size: str, m: int, position: int, pages: int) -> None:
    check_stretches(run, SIZES[size], m, position, pages)


def test_sharp_scores(run: Run) -> None:
    """The largest score moves often and some weights vanish."""
    check(run, NANO, 40, 300, score_scale=30.0)
    check_stretches(run, NANO, 40, 500, 1, score_scale=30.0, budget=5e-6)  # few rows: the scores' own rounding shows


@settings(max_examples=20, deadline=None)
@given(m=st.integers(1, 40), position=st.integers(0, 600), pages=st.integers(1, 3))
def test_any_position(run: Run, m: int, position: int, pages: int) -> None:
    check(run, NANO, m, position)
    check_stretches(run, NANO, m, position, pages)
