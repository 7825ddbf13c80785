"""The delta rule of a prefill chunk: convolution and gates, the chunked form against the token-by-token recurrence."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.harness import EPS, NANO, REAL, Array, Run, normal, pack, rms_ratio, step_rows, unwritten
from tests.oracles import delta_net as oracle
from tests.oracles.rows import gated_norm, l2_norm

CONV_BUDGET = 1e-6
CHUNK_BUDGET = 5e-6
SIZES = {"nano": NANO, "real": REAL | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_linear_layers": 2}}
LENGTHS = [1, 2, 3, 7, 63, 64, 65, 200]
SLOT_IN, SLOT_OUT, LAYER = 3, 1, 1


def widths(sizes: Mapping[str, int]) -> tuple[int, int, int, int, int]:
    """Hk, Hv, dk, dv, C."""
    names = ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    hk, hv, dk, dv = (sizes[f"linear_{name}"] for name in names)
    return hk, hv, dk, dv, 2 * hk * dk + hv * dv


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("m", LENGTHS)
def test_gdn_conv(run: Run, size: str, m: int) -> None:
    sizes, rng = SIZES[size], np.random.default_rng(m)
    hk, hv, dk, dv, channels = widths(sizes)
    qkv, ba = normal(rng, m, channels), normal(rng, m, 2, hv, scale=4)
    conv_w, a_log, dt_bias = normal(rng, channels, 4), normal(rng, hv), normal(rng, hv)
    states = normal(rng, 5, sizes["num_linear_layers"], 3, channels)
    before = states.copy()
    q, k, v = unwritten(m, hk, dk), unwritten(m, hk, dk), unwritten(m, hv, dv)
    g, beta = unwritten(m, hv), unwritten(m, hv)
    run("gdn_conv_f32", sizes, pack(m, LAYER),
        [step_rows(1, slot_in=SLOT_IN, slot_out=SLOT_OUT), qkv, ba, conv_w, a_log, dt_bias, states, q, k, v, g, beta],
        (hk, m, 1))  # fmt: skip

    history = before[SLOT_IN, LAYER]
    y = oracle.convolve(qkv.astype(np.float64), history.astype(np.float64), conv_w.astype(np.float64))
    parts = np.split(y, [hk * dk, 2 * hk * dk], axis=1)
    expected_g, expected_beta = oracle.gates(*(ba.astype(np.float64).transpose(1, 0, 2)), a_log, dt_bias)
    assert rms_ratio(q, l2_norm(parts[0].reshape(q.shape)) * dk**-0.5) < run.bound(CONV_BUDGET)
    assert rms_ratio(k, l2_norm(parts[1].reshape(k.shape))) < run.bound(CONV_BUDGET)
    assert rms_ratio(v, parts[2].reshape(v.shape)) < run.bound(CONV_BUDGET)
    assert rms_ratio(g, expected_g) < run.bound(CONV_BUDGET)
    assert rms_ratio(beta, expected_beta) < run.bound(CONV_BUDGET)
    expected_states = before.copy()
    expected_states[SLOT_OUT, LAYER] = np.concatenate([history, qkv])[-3:]
    np.testing.assert_array_equal(states, expected_states)


def test_gdn_conv_of_extreme_gates(run: Run) -> None:
    """Gates far from zero neither overflow nor lose the small end."""
    hk, hv, dk, dv, channels = widths(NANO)
    values = np.array([-200.0, -88.0, -20.0, 0.0, 20.0, 88.0, 200.0], np.float32)
    m = len(values)
    ba = np.broadcast_to(values[:, None, None], (m, 2, hv)).copy()
    g, beta = unwritten(m, hv), unwritten(m, hv)
    zeros = np.zeros((5, NANO["num_linear_layers"], 3, channels), np.float32)
    q, k, v = unwritten(m, hk, dk), unwritten(m, hk, dk), unwritten(m, hv, dv)
    flat = np.zeros(hv, np.float32)
    run("gdn_conv_f32", NANO, pack(m, 0),
        [step_rows(1, slot_in=0, slot_out=1), np.zeros((m, channels), np.float32), ba,
         np.ones((channels, 4), np.float32), flat, flat, zeros, q, k, v, g, beta], (hk, m, 1))  # fmt: skip
    expected_g, expected_beta = oracle.gates(*(ba.astype(np.float64).transpose(1, 0, 2)), flat, flat)
    np.testing.assert_allclose(g, expected_g, rtol=1e-5, atol=1e-37)
    np.testing.assert_allclose(beta, expected_beta, rtol=1e-5, atol=1e-37)
    assert not q.any() and not k.any() and not v.any()  # a zero row stays zero: eps is in the norm


def test_gdn_conv_hides_no_overflow_and_no_gate_that_is_not_a_number(run: Run) -> None:
    """A norm that no float holds would make zeros of a row, and a decay that is NaN would be the fastest."""
    rng, m = np.random.default_rng(5), 9
    hk, hv, dk, dv, channels = widths(NANO)
    qkv, ba, conv_w = normal(rng, m, channels), normal(rng, m, 2, hv), normal(rng, channels, 4)
    conv_w[:dk] = 1e20  # of the first head of q
    ba[2, 0, 1] = ba[7, 1, 2] = np.nan
    conv_states = np.zeros((5, NANO["num_linear_layers"], 3, channels), np.float32)
    q, k, v = unwritten(m, hk, dk), unwritten(m, hk, dk), unwritten(m, hv, dv)
    g, beta, flat = unwritten(m, hv), unwritten(m, hv), np.zeros(hv, np.float32)
    run("gdn_conv_f32", NANO, pack(m, LAYER),
        [step_rows(1, slot_in=SLOT_IN, slot_out=SLOT_OUT), qkv, ba, conv_w, flat, flat, conv_states, q, k, v, g, beta],
        (hk, m, 1))  # fmt: skip
    assert np.isnan(q[:, 0]).all() and np.isfinite(q[:, 1:]).all() and np.isfinite(k).all() and np.isfinite(v).all()
    np.testing.assert_array_equal(np.argwhere(np.isnan(beta)), [[2, 1]])
    np.testing.assert_array_equal(np.argwhere(np.isnan(g)), [[7, 2]])


def delta_inputs(sizes: Mapping[str, int], m: int, case: str) -> tuple[Array, Array, Array, Array, Array]:
    """q, k, v, g, beta in float32 for one kind of hard case."""
    rng = np.random.default_rng([m, len(case)])
    hk, hv, dk, dv, _ = widths(sizes)
    q, k, v = normal(rng, m, hk, dk), normal(rng, m, hk, dk), normal(rng, m, hv, dv)
    g, beta = -rng.exponential(0.1, (m, hv)), rng.uniform(0.05, 0.95, (m, hv))
    if case == "correlated":  # neighbouring keys nearly equal, beta near 1, hardly any decay: T is far from I
        k = normal(rng, 1, hk, dk) + 0.05 * k
        g, beta = -rng.exponential(1e-3, (m, hv)), 1.0 - rng.exponential(1e-3, (m, hv))
    elif case == "slow":
        g = -rng.exponential(1e-4, (m, hv))
    elif case == "fast":  # G reaches -1000 in a chunk
        g = -rng.exponential(16.0, (m, hv))
    elif case == "mixed":  # sudden resets between stretches of slow decay
        g = np.where(rng.random((m, hv)) < 0.3, -rng.exponential(30.0, (m, hv)), -rng.exponential(1e-3, (m, hv)))
    q = l2_norm(q.astype(np.float64)) * dk**-0.5
    k = l2_norm(k.astype(np.float64))
    q, k, v, g, beta = (np.ascontiguousarray(x, np.float32) for x in (q, k, v, g, beta))
    return q, k, v, g, beta


def run_chunk(run: Run, sizes: Mapping[str, int], q: Array, k: Array, v: Array, g: Array, beta: Array) -> list[Array]:
    m, hv, dv = v.shape
    outputs = [unwritten(m, hv, dv), unwritten(m, hv, k.shape[2]), unwritten(m, hv, oracle.CHUNK)]
    run("gdn_chunk_f32", sizes, pack(m), [q, k, v, g, beta, *outputs], (hv, -(-m // oracle.CHUNK), 1))
    return outputs


def run_scan(
    run: Run, sizes: Mapping[str, int], q: Array, k: Array, parts: list[Array], g: Array, states: Array
) -> Array:
    m, hv, dv = parts[0].shape
    o = unwritten(m, hv, dv)
    step = step_rows(1, slot_in=SLOT_IN, slot_out=SLOT_OUT)
    run("gdn_scan_f32", sizes, pack(m, LAYER), [step, q, k, *parts, g, states, o], (dv, hv, 1))
    return o


CASES = ["usual", "correlated", "slow", "fast", "mixed"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("m", LENGTHS)
def test_gdn_chunk(run: Run, size: str, m: int) -> None:
    inputs = delta_inputs(SIZES[size], m, "usual")
    expected = oracle.chunk_parts(*(x.astype(np.float64) for x in inputs))
    for got, reference in zip(run_chunk(run, SIZES[size], *inputs), expected, strict=True):
        assert rms_ratio(got, reference) < run.bound(CHUNK_BUDGET)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("m", LENGTHS)
@pytest.mark.parametrize("case", CASES)
def test_delta_rule_equals_the_recurrence(run: Run, size: str, m: int, case: str) -> None:
    sizes = SIZES[size]
    q, k, v, g, beta = delta_inputs(sizes, m, case)
    _, hv, dk, dv, _ = widths(sizes)
    states = normal(np.random.default_rng(m), 5, sizes["num_linear_layers"], hv, dk, dv, scale=0.3)
    before = states.copy()
    o = run_scan(run, sizes, q, k, run_chunk(run, sizes, q, k, v, g, beta), g, states)
    wide = [x.astype(np.float64) for x in (q, k, v, g, beta)]
    expected_o, expected_state = oracle.sequential(*wide, before[SLOT_IN, LAYER].astype(np.float64))
    assert rms_ratio(o, expected_o) < run.bound(CHUNK_BUDGET)
    assert rms_ratio(states[SLOT_OUT, LAYER], expected_state) < run.bound(CHUNK_BUDGET)
    states[SLOT_OUT, LAYER] = before[SLOT_OUT, LAYER]
    np.testing.assert_array_equal(states, before)


@settings(max_examples=15, deadline=None)
@given(cut=st.integers(1, 129), m=st.integers(2, 130), case=st.sampled_from(CASES))
def test_a_timeline_may_be_cut_anywhere(run: Run, cut: int, m: int, case: str) -> None:
    """Two chunks in a row give what one gives, up to the order of sums."""
    cut = min(cut, m - 1)
    q, k, v, g, beta = delta_inputs(NANO, m, case)
    _, hv, dk, dv, _ = widths(NANO)
    states = np.zeros((5, NANO["num_linear_layers"], hv, dk, dv), np.float32)
    whole = run_scan(run, NANO, q, k, run_chunk(run, NANO, q, k, v, g, beta), g, states)
    end = states[SLOT_OUT, LAYER].copy()
    states[:] = 0
    pieces = []
    for rows in (slice(0, cut), slice(cut, m)):
        part = [x[rows].copy() for x in (q, k, v, g, beta)]
        pieces.append(run_scan(run, NANO, part[0], part[1], run_chunk(run, NANO, *part), part[3], states))
        states[SLOT_IN] = states[SLOT_OUT]
    assert rms_ratio(np.concatenate(pieces), whole.astype(np.float64)) < run.bound(2 * CHUNK_BUDGET)
    assert rms_ratio(states[SLOT_OUT, LAYER], end.astype(np.float64)) < run.bound(2 * CHUNK_BUDGET)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("m", [1, 8, 9, 33])
def test_gated_norm(run: Run, size: str, m: int) -> None:
    sizes, rng = SIZES[size], np.random.default_rng(m)
    _, hv, _, dv, _ = widths(sizes)
    o, z, norm = normal(rng, m, hv, dv), normal(rng, m, hv, dv, scale=3), normal(rng, dv)
    y = unwritten(m, hv * dv)
    run("gated_norm_f32", sizes, pack(m), [o, z, norm, y], (m, 1, 1))
    assert rms_ratio(y, gated_norm(o, z, norm, EPS).reshape(m, -1)) < run.bound(CONV_BUDGET)


def test_heads_whose_norm_no_float_holds_give_nan(run: Run) -> None:
    rng = np.random.default_rng(6)
    _, hv, _, dv, _ = widths(NANO)
    o, z, y = normal(rng, 2, hv, dv), normal(rng, 2, hv, dv), unwritten(2, hv, dv)
    o[1, 2] = 1e20
    run("gated_norm_f32", NANO, pack(2), [o, z, np.ones(dv, np.float32), y], (2, 1, 1))
    assert np.isnan(y[1, 2]).all()
    y[1, 2] = 0
    assert np.isfinite(y).all()
