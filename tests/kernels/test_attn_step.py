"""The attention kernels of the step program (and attn_prep's prefill form)."""

import numpy as np
import pytest

from tests.kernels.harness import NANO, PAGE_TOKENS, REAL, Run, normal, pack, rms_ratio, step_rows, unwritten
from tests.oracles.attention import attend, rope
from tests.oracles.rows import norm

CORE = 2e-6  # model.md, section 6: attention core, any split
SIZES = NANO | {"num_attention_layers": 2}
REAL_HEADS = REAL | {"num_attention_layers": 2}
PAGES = 3  # of a row
GROUPS_OF_5 = SIZES | {"num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 128}
all_sizes = pytest.mark.parametrize("sizes", [SIZES, REAL_HEADS, GROUPS_OF_5], ids=["nano", "real", "five"])
THETA = 1e7


def heads_of(sizes):
    return sizes["num_attention_heads"], sizes["num_key_value_heads"], sizes["head_dim"]


def rope_table(rotary_dim):
    turns = THETA ** (-np.arange(rotary_dim // 2) * 2.0 / rotary_dim) / (2 * np.pi)
    high = turns.astype(np.float32)
    return np.stack([high, (turns - high).astype(np.float32)], -1)


def kv_pool(sizes, pages):
    """[page][layer][K | V][Hkv][256][D], unwritten."""
    _, kv_heads, width = heads_of(sizes)
    return unwritten(pages, sizes["num_attention_layers"], 2, kv_heads, PAGE_TOKENS, width)


def prepare(run, kernel, sizes, step, rows, q, k, v, page_table, kv, layer=1, seed=0, k_scale=1.0):
    """Runs attn_prep -> the gains that it used."""
    rng = np.random.default_rng(seed)
    q_heads, kv_heads, width = heads_of(sizes)
    q_gain, k_gain = normal(rng, width) + 1, (normal(rng, width) + 1) * np.float32(k_scale)
    buffers = [step, q, k, v, q_gain, k_gain, rope_table(sizes["rotary_dim"]), page_table, kv]
    run(kernel, sizes, pack(rows, layer), buffers, (q_heads + kv_heads, rows, 1))
    return q_gain, k_gain


# (position, row of the page table) per row: page borders, several timelines, the far end of the context.
STEP_POSITIONS = [[(0, 0)], [(255, 1), (256, 1)], [(511, 0), (3, 1), (700, 2)]]


@all_sizes
@pytest.mark.parametrize("tile", [False, True], ids=["step", "tile"])
@pytest.mark.parametrize("places", STEP_POSITIONS, ids=["one", "page border", "three timelines"])
def test_attn_prep(run: Run, sizes, tile, places):
    rng = np.random.default_rng(1)
    q_heads, kv_heads, width = heads_of(sizes)
    rows = 9 if tile else len(places)
    if tile:  # a chunk: the first place and the rows behind it
        step = step_rows(1, position=places[0][0], page_begin=places[0][1] * PAGES)
        places = [(places[0][0] + i, places[0][1]) for i in range(rows)]
    else:
        step = step_rows(rows, position=[p for p, _ in places], page_begin=[r * PAGES for _, r in places])
    q, k, v = normal(rng, rows, q_heads, width), normal(rng, rows, kv_heads, width), normal(rng, rows, kv_heads, width)
    q, k, v = (run.rounded(values) for values in (q, k, v))
    q_before = q.copy()
    page_table = rng.permutation(3 * PAGES).astype(np.uint32).reshape(3, PAGES)
    kv = kv_pool(sizes, 3 * PAGES)
    kernel = "attn_prep_f32_tile" if tile else "attn_prep_f32"
    q_gain, k_gain = prepare(run, kernel, sizes, step, rows, q, k, v, page_table, kv)
    written = np.zeros(kv.shape, bool)
    for row, (position, table_row) in enumerate(places):
        at = (page_table[table_row, position // PAGE_TOKENS], 1, slice(None), slice(None), position % PAGE_TOKENS)
        written[at] = True
        assert rms_ratio(q[row], rope(norm(q_before[row], q_gain), position, THETA, sizes["rotary_dim"])) < run.bound(
            1e-6
        )
        assert rms_ratio(kv[at][0], rope(norm(k[row], k_gain), position, THETA, sizes["rotary_dim"])) < run.bound(1e-6)
        np.testing.assert_array_equal(kv[at][1], v[row])
    assert np.isnan(kv[~written]).all()


@pytest.mark.parametrize("position", [1, 4095, 65537, 262143])
def test_rope_is_exact_at_the_far_end_of_the_context(run: Run, position):
    q_heads, kv_heads, width = heads_of(REAL_HEADS)
    q, k = np.ones((1, q_heads, width), np.float32), np.ones((1, kv_heads, width), np.float32)
    page_table, kv = np.zeros((1, 1024), np.uint32), kv_pool(REAL_HEADS, 1)
    step = step_rows(1, position=position)
    q_gain, _ = prepare(run, "attn_prep_f32", REAL_HEADS, step, 1, q, k, k, page_table, kv)
    reference = rope(norm(np.ones((q_heads, width)), q_gain), position, THETA, REAL_HEADS["rotary_dim"])
    rounding = 2**-11 if run.activation == "f16" else 0  # of q itself
    np.testing.assert_allclose(q[0], reference, rtol=rounding, atol=2e-6 * np.abs(q_gain).max())


@pytest.mark.only("i16", "f16")
@pytest.mark.parametrize("tile", [False, True], ids=["step", "tile"])
def test_what_no_half_holds_becomes_nan_in_the_cache(run: Run, tile):
    """Infinite, a key might get a score of -inf, and nobody would see it."""
    q_heads, kv_heads, width = heads_of(SIZES)
    q, k, v = (np.ones((1, heads, width), np.float32) for heads in (q_heads, kv_heads, kv_heads))
    v[0, 0, :6] = 65504, 65519, 65520, -65519, -65520, np.inf
    page_table, kv = np.zeros((1, PAGES), np.uint32), kv_pool(SIZES, 1)
    kernel = "attn_prep_f32_tile" if tile else "attn_prep_f32"
    step = step_rows(1, position=7)
    with np.errstate(over="ignore"):
        _, k_gain = prepare(run, kernel, SIZES, step, 1, q, k, v, page_table, kv, k_scale=5e4)
    np.testing.assert_array_equal(kv[0, 1, 1, 0, 7, :7], [65504, 65504, np.nan, -65504, np.nan, np.nan, 1])
    keys = rope(norm(k[0], k_gain), 7, THETA, SIZES["rotary_dim"])
    fits = np.abs(keys) < 65500
    assert 0 < fits.sum() < fits.size and (fits == (np.abs(keys) < 65600)).all()
    np.testing.assert_allclose(kv[0, 1, 0, :, 7], np.where(fits, keys, np.nan), rtol=1e-3, atol=1)


class Attention:
    """attn_split and attn_combine over a filled pool; positions beyond each row's own are NaN."""

    def __init__(self, run: Run, sizes, positions, splits, keys_per_split, scale=1.0):
        rng = np.random.default_rng(2)
        q_heads, kv_heads, width = heads_of(sizes)
        rows = len(positions)
        self.kv = kv_pool(sizes, rows * PAGES)
        page_table = rng.permutation(rows * PAGES).astype(np.uint32).reshape(rows, PAGES)
        q = run.rounded(normal(rng, rows, q_heads, width, scale=scale))
        gate = run.rounded(normal(rng, rows, q_heads, width))
        self.references = []
        for row, position in enumerate(positions):
            k, v = (run.rounded(normal(rng, position + 1, kv_heads, width)) for _ in "kv")
            for p in range(position + 1):
                page = page_table[row, p // PAGE_TOKENS]
                self.kv[page, 1, 0, :, p % PAGE_TOKENS], self.kv[page, 1, 1, :, p % PAGE_TOKENS] = k[p], v[p]
            self.references.append(attend(q[row : row + 1], gate[row : row + 1], k, v, position)[0])
        step = step_rows(rows, position=positions, page_begin=PAGES * np.arange(rows), keys_per_split=keys_per_split)
        self.partial = unwritten(rows, q_heads, splits, width + 2)
        buffers = [step, q, page_table, self.kv, self.partial]
        run("attn_split_f32", sizes, pack(rows, 1, splits), buffers, (kv_heads, splits, rows))
        self.y = unwritten(rows, q_heads, width)
        run("attn_combine_f32", sizes, pack(rows, splits), [self.partial, gate, self.y], (q_heads, rows, 1))


@all_sizes
@pytest.mark.parametrize("positions", [[0], [31], [32, 5], [255, 256, 600]], ids=str)
@pytest.mark.parametrize("splits, keys_per_split", [(1, 768), (3, 256), (7, 100)])
def test_attention(run: Run, sizes, positions, splits, keys_per_split):
    got = Attention(run, sizes, positions, splits, keys_per_split)
    for y, reference in zip(got.y, got.references, strict=True):
        assert rms_ratio(y, reference) < run.bound(CORE)
    for partial, position in zip(got.partial, positions, strict=True):
        empty = partial[:, -(-(position + 1) // keys_per_split) :]
        assert (empty[..., -2] == np.float32(-1e30)).all() and (empty[..., -1] == 0).all()


def test_large_scores_do_not_overflow(run: Run):
    got = Attention(run, SIZES, [300], 3, 200, scale=1000)
    assert rms_ratio(got.y[0], got.references[0]) < run.bound(1e-4)  # scores of thousands: their own rounding decides
