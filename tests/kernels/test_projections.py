"""The matrix kernels of the step program outside of the experts."""

import numpy as np
import pytest

from tests.kernels.harness import (
    FLAGS,
    FORMATS,
    NANO,
    REAL,
    Run,
    normal,
    pack,
    random_weight,
    rms_ratio,
    step_rows,
    unwritten,
)
from tests.oracles.rows import gated_norm, norm, swiglu

PRODUCT = 2e-6  # model.md, section 6: matrix-vector, K <= 4,096

# Real widths and head sizes with few heads; and a width that is no power of two.
WIDE = REAL | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
ODD = NANO | {"hidden_size": 192, "linear_num_key_heads": 1, "linear_num_value_heads": 3}
each_format = pytest.mark.parametrize("form", FORMATS)
each_size = pytest.mark.parametrize(
    "sizes, rows", [(NANO, 1), (NANO, 8), (ODD, 3), (ODD, 7), (WIDE, 1), (WIDE, 2)],
    ids=["nano-1", "nano-8", "odd-3", "odd-7", "wide-1", "wide-2"])  # fmt: skip


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@each_format
@pytest.mark.parametrize("tile", [False, True])
def test_embed(run: Run, rng, form, tile):
    width, rows = 192, 19
    weight = random_weight(rng, form, 97, width)
    tokens = rng.integers(0, 97, rows, dtype=np.uint32)
    x = unwritten(rows, width)
    sizes = NANO | {"hidden_size": width, "vocab_size": 97}
    if tile:
        run(f"embed_{form}_f32_tile", sizes, pack(rows), [tokens, *weight.ranges, x], (rows, 1, 1))
    else:
        step = step_rows(rows, token_slot=np.arange(rows)[::-1])
        run(f"embed_{form}_f32", sizes, pack(rows), [step, tokens, *weight.ranges, x], (rows, 1, 1))
        tokens = tokens[::-1]
    assert rms_ratio(x, weight.dense[tokens]) < run.bound(2e-7)


def test_embed_by_hand(run: Run):
    codes = np.zeros((1, 32), np.uint8)
    codes[0, :4] = np.frombuffer(np.uint32(0x76543210).tobytes(), np.uint8)
    pairs = [np.full((1, 1), value, np.float32) for value in (0.5, -1.0)]
    x = unwritten(1, 64)
    run("embed_q4g64w_f32", NANO, pack(1), [step_rows(1), np.zeros(1, np.uint32), codes, *pairs, x], (1, 1, 1))
    np.testing.assert_array_equal(x[0, :9], [-1, -0.5, 0, 0.5, 1, 1.5, 2, 2.5, -1])


@each_format
@each_size
def test_gdn_in(run: Run, rng, form, sizes, rows):
    width, heads, dv = sizes["hidden_size"], sizes["linear_num_value_heads"], sizes["linear_value_head_dim"]
    channels = 2 * sizes["linear_num_key_heads"] * sizes["linear_key_head_dim"] + heads * dv
    weight = random_weight(rng, form, channels + heads * dv + 2 * heads, width)
    x, gain = normal(rng, rows, width, scale=3), normal(rng, width) + 1
    qkv, z, ba = unwritten(rows, channels), unwritten(rows, heads * dv), unwritten(rows, 2 * heads)
    buffers = [x, gain, *weight.ranges, qkv, z, ba]
    run(f"gdn_in_{form}_f32", sizes, pack(rows), buffers, (len(weight.dense), rows, 1))
    reference = norm(x, gain) @ weight.dense.T
    parts = np.split(reference, [channels, channels + heads * dv], axis=1)
    for got, part in zip((qkv, z, ba), parts, strict=True):
        assert rms_ratio(got, part) < run.bound(PRODUCT)


@each_format
@each_size
def test_attn_in(run: Run, rng, form, sizes, rows):
    width = sizes["hidden_size"]
    q, kv = (sizes[heads] * sizes["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    weight = random_weight(rng, form, 2 * q + 2 * kv, width)
    x, gain = normal(rng, rows, width, scale=0.02), normal(rng, width) + 1
    outputs = [unwritten(rows, count) for count in (q, q, kv, kv)]
    buffers = [x, gain, *weight.ranges, *outputs]
    run(f"attn_in_{form}_f32", sizes, pack(rows), buffers, (len(weight.dense), rows, 1))
    reference = norm(x, gain) @ weight.dense.T
    for got, part in zip(outputs, np.split(reference, [q, 2 * q, 2 * q + kv], axis=1), strict=True):
        assert rms_ratio(got, part) < run.bound(PRODUCT)


@each_format
@each_size
def test_gdn_out(run: Run, rng, form, sizes, rows):
    width, heads, dv = sizes["hidden_size"], sizes["linear_num_value_heads"], sizes["linear_value_head_dim"]
    weight = random_weight(rng, form, width, heads * dv)
    o, z, gain = normal(rng, rows, heads, dv), normal(rng, rows, heads, dv, scale=4), normal(rng, dv) + 1
    x = normal(rng, rows, width)
    reference = x + gated_norm(o, z, gain).reshape(rows, -1) @ weight.dense.T
    run(f"gdn_out_{form}_f32", sizes, pack(rows), [o, z, gain, *weight.ranges, x], (width, rows, 1))
    assert rms_ratio(x, reference) < run.bound(PRODUCT)


@pytest.mark.parametrize("rows", [1, 8])
def test_gdn_out_at_the_real_size(run: Run, rng, rows):
    width, heads, dv = 2048, 32, 128
    weight = random_weight(rng, "q4g64", width, heads * dv)
    o, z, gain = normal(rng, rows, heads, dv), normal(rng, rows, heads, dv), normal(rng, dv) + 1
    x = normal(rng, rows, width)
    reference = x + gated_norm(o, z, gain).reshape(rows, -1) @ weight.dense.T
    run("gdn_out_q4g64_f32", REAL, pack(rows), [o, z, gain, *weight.ranges, x], (width, rows, 1))
    assert rms_ratio(x, reference) < run.bound(PRODUCT)


@each_format
@each_size
def test_attn_out(run: Run, rng, form, sizes, rows):
    width, columns = sizes["hidden_size"], sizes["num_attention_heads"] * sizes["head_dim"]
    weight = random_weight(rng, form, width, columns)
    y, x = normal(rng, rows, columns), normal(rng, rows, width)
    reference = x + y.astype(np.float64) @ weight.dense.T
    run(f"attn_out_{form}_f32", sizes, pack(rows), [y, *weight.ranges, x], (width, rows, 1))
    assert rms_ratio(x, reference) < run.bound(PRODUCT)


@each_format
@pytest.mark.parametrize("columns", [64, 1088, 4096])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 6, 7, 8])
def test_every_number_of_rows_and_prime_numbers_of_weight_rows(run: Run, rng, form, columns, rows):
    sizes = NANO | {"hidden_size": 67, "num_attention_heads": columns // 64}
    weight = random_weight(rng, form, 67, columns)
    y, x = normal(rng, rows, columns), np.zeros((rows, 67), np.float32)
    run(f"attn_out_{form}_f32", sizes, pack(rows), [y, *weight.ranges, x], (67, rows, 1))
    assert rms_ratio(x, y.astype(np.float64) @ weight.dense.T) < run.bound(PRODUCT)


@each_format
def test_a_row_does_not_depend_on_its_neighbours(run: Run, rng, form):
    weight = random_weight(rng, form, 64, 256)
    y = normal(rng, 8, 256)
    together = np.zeros((8, 64), np.float32)
    run(f"attn_out_{form}_f32", NANO, pack(8), [y, *weight.ranges, together], (64, 8, 1))
    for row in range(8):
        alone = np.zeros((1, 64), np.float32)
        run(f"attn_out_{form}_f32", NANO, pack(1), [y[row : row + 1], *weight.ranges, alone], (64, 1, 1))
        assert rms_ratio(together[row], alone[0]) < run.bound(5e-7)


@each_format
@each_size
def test_router(run: Run, rng, form, sizes, rows):
    width, experts = sizes["hidden_size"], sizes["num_experts"]
    weight = random_weight(rng, form, experts + 1, width)
    x, gain = normal(rng, rows, width), normal(rng, width) + 1
    logits, shared_gate = unwritten(rows, experts), unwritten(rows)
    buffers = [x, gain, *weight.ranges, logits, shared_gate]
    run(f"router_{form}_f32", sizes, pack(rows), buffers, (experts + 1, rows, 1))
    reference = norm(x, gain) @ weight.dense.T
    assert rms_ratio(logits, reference[:, :experts]) < run.bound(PRODUCT, half=2e-3)
    # Few numbers: their largest error, not the rms.
    assert rms_ratio(shared_gate, reference[:, experts]) < run.bound(1e-5, half=2e-3)


@each_format
@each_size
def test_shared_up(run: Run, rng, form, sizes, rows):
    width, inner = sizes["hidden_size"], sizes["shared_expert_intermediate_size"]
    gate, up = random_weight(rng, form, inner, width), random_weight(rng, form, inner, width)
    x, gain = normal(rng, rows, width), normal(rng, width) + 1
    hs = unwritten(rows, inner)
    buffers = [x, gain, *gate.ranges, *up.ranges, hs]
    run(f"shared_up_{form}_f32", sizes, pack(rows), buffers, (inner, rows, 1))
    assert rms_ratio(hs, swiglu(norm(x, gain), gate.dense, up.dense)) < run.bound(3e-6)


@each_format
@pytest.mark.parametrize("vocab", [257, 2048])
def test_lm_head(run: Run, rng, form, vocab):
    sizes = NANO | {"vocab_size": vocab, "hidden_size": 320}
    weight = random_weight(rng, form, vocab, 320)
    x, gain = normal(rng, 4, 320), normal(rng, 320) + 1
    step = step_rows(4, timeline=[2, 4, 0, 1], wants_logits=[1, 0, 1, 1])
    logits, flags = np.full((5, vocab), 7, np.float32), np.zeros(1, FLAGS)
    run(f"lm_head_{form}_f32", sizes, pack(4), [step, x, gain, *weight.ranges, logits, flags], (vocab, 4, 1))
    reference = norm(x, gain) @ weight.dense.T
    for row, timeline in ((0, 2), (2, 0), (3, 1)):
        assert rms_ratio(logits[timeline], reference[row]) < run.bound(PRODUCT)
    assert (logits[3:] == 7).all()  # rows nobody asked for keep what they had
    assert flags["nan"][0] == 0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_lm_head_reports_what_is_not_finite(run: Run, rng, value):
    weight = random_weight(rng, "q4g64", 512, 64)
    x = normal(rng, 2, 64)
    x[1, 5] = value
    for wants, expected in (([1, 0], 0), ([0, 1], 1)):
        step, flags = step_rows(2, timeline=[0, 1], wants_logits=wants), np.zeros(1, FLAGS)
        buffers = [step, x, np.ones(64, np.float32), *weight.ranges, unwritten(2, 512), flags]
        run("lm_head_q4g64_f32", NANO, pack(2), buffers, (512, 2, 1))
        assert flags["nan"][0] == expected


@pytest.mark.parametrize("tile", [False, True], ids=["step", "tile"])
def test_a_product_that_no_float_holds_is_nan(run: Run, rng, tile):
    """The sigmoid of an infinite gate would be 1."""
    weight = random_weight(rng, "q4g64w", 9, 64)
    weight.ranges[2][4] = 3e38  # the biases of a row
    x = np.ones((1, 64), np.float32)
    logits, shared_gate = unwritten(1, 8), unwritten(1)
    if tile:
        buffers = [x, *weight.ranges, logits, shared_gate]
        run("router_q4g64w_f32_tile", NANO, pack(1), buffers, (9, 1, 1))
    else:
        buffers = [x, np.ones(64, np.float32), *weight.ranges, logits, shared_gate]
        run("router_q4g64w_f32", NANO, pack(1), buffers, (9, 1, 1))
    assert np.isnan(logits[0, 4]) and np.isfinite(np.delete(logits[0], 4)).all() and np.isfinite(shared_gate).all()


def test_rows_whose_norm_no_float_holds_give_nan(run: Run, rng):
    """They would be rows of zeros."""
    weight = random_weight(rng, "q4g64", 9, 64)
    x = normal(rng, 3, 64)
    x[1] = 1e20
    logits, shared_gate = unwritten(3, 8), unwritten(3)
    run("router_q4g64_f32", NANO, pack(3), [x, np.ones(64, np.float32), *weight.ranges, logits, shared_gate], (9, 3, 1))
    assert np.isnan(logits[1]).all() and np.isnan(shared_gate[1])
    assert np.isfinite(logits[[0, 2]]).all() and np.isfinite(shared_gate[[0, 2]]).all()


def test_heads_whose_norm_no_float_holds_give_nan(run: Run, rng):
    width, heads, dv = (NANO[name] for name in ("hidden_size", "linear_num_value_heads", "linear_value_head_dim"))
    weight = random_weight(rng, "q4g64", width, heads * dv)
    o, z, x = normal(rng, 2, heads, dv), normal(rng, 2, heads, dv), normal(rng, 2, width)
    o[1, 2] = 1e20
    run("gdn_out_q4g64_f32", NANO, pack(2), [o, z, np.ones(dv, np.float32), *weight.ranges, x], (width, 2, 1))
    assert np.isfinite(x[0]).all() and np.isnan(x[1]).all()


@pytest.mark.parametrize("tile", [False, True], ids=["step", "tile"])
def test_a_gate_that_no_half_holds_is_nan(run: Run, rng, tile):
    """As an infinite half it would be open, or shut."""
    q, kv = (NANO[heads] * NANO["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    weight = random_weight(rng, "q4g64w", 2 * q + 2 * kv, 64)
    weight.ranges[1][q : q + 3] = 0
    weight.ranges[2][q : q + 3] = np.array([[1023], [1024], [-1024]])  # 64 times that: 65472, 65536
    x = np.ones((1, 64), np.float32)
    outputs = [unwritten(1, count) for count in (q, q, kv, kv)]
    gain = [] if tile else [np.ones(64, np.float32)]
    kernel = "attn_in_q4g64w_f32_tile" if tile else "attn_in_q4g64w_f32"
    run(kernel, NANO, pack(1), [x, *gain, *weight.ranges, *outputs], (2 * q + 2 * kv, 1, 1))
    expected = [65472, np.nan, np.nan] if run.activation == "f16" else [65472, 65536, -65536]
    np.testing.assert_allclose(outputs[1][0, :3], expected, rtol=1e-3)
    assert all(np.isfinite(output).all() for output in (outputs[0], outputs[1][0, 3:], *outputs[2:]))
