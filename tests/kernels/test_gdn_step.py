"""gdn_step: convolution, gates, recurrence, and both states, across timelines and within one."""

from itertools import pairwise

import numpy as np
import pytest

from tests.kernels.harness import NANO, Run, normal, pack, rms_ratio, step_rows, unwritten
from tests.oracles.delta_net import DeltaNet

CORE = 3e-6  # model.md, section 6: delta rule, step and state
SIZES = NANO | {"num_linear_layers": 2}
REAL_HEADS = SIZES | {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
THREE_PER_KEY = SIZES | {"linear_num_key_heads": 1, "linear_num_value_heads": 3, "linear_key_head_dim": 128}
all_sizes = pytest.mark.parametrize("sizes", [SIZES, REAL_HEADS, THREE_PER_KEY], ids=["nano", "real", "three-per-key"])
TIMELINES = {"empty": [(0, 1)], "one": [(3, 1)], "three": [(2, 4), (0, 1), (3, 5)]}


class Layer:
    """Weights and state pools of layer 1 of 2; slot 0 is the empty state, the others hold random ones."""

    def __init__(self, sizes, slots, seed=11):
        self.rng = np.random.default_rng(seed)
        self.sizes = sizes
        self.heads, self.dk, self.dv = (
            sizes[f"linear_{name}"] for name in ("num_value_heads", "key_head_dim", "value_head_dim")
        )
        self.channels = 2 * sizes["linear_num_key_heads"] * self.dk + self.heads * self.dv
        self.conv_w = normal(self.rng, self.channels, 4, scale=0.5)
        self.a_log, self.dt_bias = normal(self.rng, self.heads), normal(self.rng, self.heads) - 2
        self.conv_state = normal(self.rng, slots, 2, 3, self.channels)
        self.state = normal(self.rng, slots, 2, self.heads, self.dk, self.dv)
        self.conv_state[0], self.state[0] = 0, 0

    def inputs(self, rows):
        return normal(self.rng, rows, self.channels), normal(self.rng, rows, 2, self.heads)

    def run(self, run: Run, slots, qkv, ba):
        """slots: (slot_in, slot_out) per row -> o."""
        rows = len(slots)
        o = unwritten(rows, self.heads, self.dv)
        step = step_rows(rows, slot_in=[s[0] for s in slots], slot_out=[s[1] for s in slots])
        buffers = [step, qkv, ba, self.conv_w, self.a_log, self.dt_bias, self.conv_state, self.state, o]
        run("gdn_step_f32", self.sizes, pack(rows, 1), buffers, (self.dv, self.heads, 1))
        return o

    def oracle(self, slot):
        wide = [x.astype(np.float64) for x in (self.conv_w, self.a_log, self.dt_bias)]
        return DeltaNet(*wide, self.conv_state[slot, 1].astype(np.float64), self.state[slot, 1].astype(np.float64))


@all_sizes
@pytest.mark.parametrize("slots", TIMELINES.values(), ids=TIMELINES.keys())
def test_rows_of_different_timelines(run: Run, sizes, slots):
    layer = Layer(sizes, 6)
    before = layer.conv_state.copy(), layer.state.copy()
    qkv, ba = layer.inputs(len(slots))
    oracles = [layer.oracle(slot_in) for slot_in, _ in slots]
    o = layer.run(run, slots, qkv, ba)
    for row, (oracle, (_, slot_out)) in enumerate(zip(oracles, slots, strict=True)):
        reference = oracle.step(qkv[row].astype(np.float64), *ba[row].astype(np.float64))
        assert rms_ratio(o[row], reference) < CORE
        assert rms_ratio(layer.state[slot_out, 1], oracle.recurrent_state) < CORE
        np.testing.assert_array_equal(layer.conv_state[slot_out, 1], oracle.conv_state)
    untouched = [slot for slot in range(6) if slot not in [slot_out for _, slot_out in slots]]
    np.testing.assert_array_equal(layer.state[untouched], before[1][untouched])
    np.testing.assert_array_equal(layer.conv_state[untouched], before[0][untouched])
    np.testing.assert_array_equal(layer.state[:, 0], before[1][:, 0])


@all_sizes
@pytest.mark.parametrize("start", [0, 6], ids=["empty", "one"])
def test_consecutive_rows_of_one_timeline(run: Run, sizes, start):
    """Five rows of a timeline, then one of another: every history of the convolution, from all state to all rows."""
    layer = Layer(sizes, 9)
    qkv, ba = layer.inputs(6)
    timelines = [layer.oracle(start)] * 5 + [layer.oracle(7)]
    slots = [(start, 1), (1, 2), (2, 3), (3, 4), (4, 5), (7, 8)]
    o = layer.run(run, slots, qkv, ba)
    for row, (oracle, (_, slot_out)) in enumerate(zip(timelines, slots, strict=True)):
        reference = oracle.step(qkv[row].astype(np.float64), *ba[row].astype(np.float64))
        assert rms_ratio(o[row], reference) < CORE
        assert rms_ratio(layer.state[slot_out, 1], oracle.recurrent_state) < CORE
        np.testing.assert_array_equal(layer.conv_state[slot_out, 1], oracle.conv_state)


def test_two_thousand_tokens_stay_within_the_budget(run: Run):
    layer = Layer(SIZES, 10)
    oracle = layer.oracle(0)
    worst = 0.0
    for call in range(256):
        qkv, ba = layer.inputs(8)
        chain = [0 if call == 0 else 8 + call % 2, *range(1, 8), 9 - call % 2]
        o = layer.run(run, [*pairwise(chain)], qkv, ba)
        reference = [oracle.step(qkv[row].astype(np.float64), *ba[row].astype(np.float64)) for row in range(8)]
        worst = max(worst, rms_ratio(o, np.stack(reference)))
    assert worst < CORE
    assert rms_ratio(layer.state[chain[-1], 1], oracle.recurrent_state) < CORE


@pytest.mark.parametrize("key", [False, True], ids=["q", "k"])
def test_a_norm_that_no_float_holds_is_nan(run: Run, key):
    """A query or key of zeros would look like any other."""
    layer = Layer(SIZES, 2)
    heads = SIZES["linear_num_key_heads"]
    first = layer.dk * (heads if key else 0)
    layer.conv_w[first : first + layer.dk] *= 1e25
    o = layer.run(run, [(0, 1)], *layer.inputs(1))[0]
    assert np.isnan(o[: layer.heads // heads]).all() and np.isfinite(o[layer.heads // heads :]).all()


@pytest.mark.parametrize("gate", [0, 1], ids=["beta", "decay"])
def test_a_gate_that_is_not_a_number_does_not_hide(run: Run, gate):
    layer = Layer(SIZES, 2)
    qkv, ba = layer.inputs(1)
    ba[0, gate, 1] = np.nan
    o = layer.run(run, [(0, 1)], qkv, ba)[0]
    assert np.isnan(o[1]).all() and np.isnan(layer.state[1, 1, 1]).all()
    assert np.isfinite(np.delete(o, 1, 0)).all()


def test_extreme_gates(run: Run):
    """Decays and betas at both ends; nothing overflows."""
    layer = Layer(SIZES, 2)
    layer.a_log[:] = [3, 3, -20, 0]
    qkv, ba = layer.inputs(1)
    ba[0] = [[90, -90, 90, -90], [500, -500, 500, -500]]
    oracle = layer.oracle(0)
    o = layer.run(run, [(0, 1)], qkv, ba)
    assert rms_ratio(o, oracle.step(qkv[0].astype(np.float64), *ba[0].astype(np.float64))[None]) < CORE


def test_decay_by_hand(run: Run):
    """A_log = a = dt_bias = 0 halves the state; beta = 0 adds nothing to it."""
    layer = Layer(SIZES, 3)
    layer.a_log[:], layer.dt_bias[:] = 0, 0
    qkv, ba = layer.inputs(1)
    ba[0] = [[-200] * 4, [0] * 4]
    layer.run(run, [(1, 2)], qkv, ba)
    np.testing.assert_allclose(layer.state[2, 1], layer.state[1, 1] / 2, rtol=2e-7)
