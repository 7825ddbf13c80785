"""The routed experts of the step program."""

from dataclasses import replace

import numpy as np
import pytest

from tests.kernels.harness import (
    FLAGS,
    FORMATS,
    NANO,
    NO_EXPERT,
    Run,
    normal,
    pack,
    random_weight,
    rms_ratio,
    unwritten,
)
from tests.oracles import moe as oracle
from tests.oracles.rows import norm

SUM = 3e-6  # model.md, section 6: MoE sum
ODD = NANO | {"hidden_size": 320, "moe_intermediate_size": 192, "shared_expert_intermediate_size": 128,
              "num_experts": 13, "num_experts_per_tok": 5}  # fmt: skip
REAL_SHAPE = NANO | {"hidden_size": 2048, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
                     "num_experts": 4, "num_experts_per_tok": 3}  # fmt: skip
MANY_EXPERTS = NANO | {"num_experts": 512, "num_experts_per_tok": 10}
SHAPES = [(NANO, 1), (NANO, 8), (ODD, 2), (ODD, 3), (REAL_SHAPE, 1), (MANY_EXPERTS, 2)]
shapes = pytest.mark.parametrize("sizes, rows", SHAPES, ids=["nano-1", "nano-8", "odd-2", "odd-3", "real", "many"])


class Up:
    """One call of experts_up; expert e lies in slot `expert_slot[e]`."""

    def __init__(self, run: Run, form, sizes, rows, router_logits=None, expert_slot=None):
        rng = np.random.default_rng(3)
        experts, k = sizes["num_experts"], sizes["num_experts_per_tok"]
        shape = (experts, sizes["moe_intermediate_size"], sizes["hidden_size"])
        self.gate, self.up = random_weight(rng, form, *shape), random_weight(rng, form, *shape)
        self.x, self.gain = normal(rng, rows, shape[2]), normal(rng, shape[2]) + 1
        self.logits = normal(rng, rows, experts) if router_logits is None else router_logits
        self.slot = rng.permutation(experts).astype(np.uint32) if expert_slot is None else expert_slot
        self.h = unwritten(rows, k, shape[1])
        self.ids, self.weights = np.full((rows, k), 99, np.uint32), unwritten(rows, k)
        self.flags = np.zeros(1, FLAGS)
        run(f"experts_up_{form}_f32", sizes, pack(rows),
            [self.x, self.gain, self.logits, self.slot, *self.gate.ranges, *self.up.ranges,
             self.h, self.ids, self.weights, self.flags], (shape[1], k, rows))  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
@shapes
def test_experts_up(run: Run, form, sizes, rows):
    got = Up(run, form, sizes, rows)
    ids, weights = oracle.topk(got.logits, sizes["num_experts_per_tok"])
    np.testing.assert_array_equal(got.ids, ids)
    assert rms_ratio(got.weights, weights) < run.bound(1e-6)
    reference = oracle.up(norm(got.x, got.gain), got.slot[ids], got.gate.dense, got.up.dense)
    assert rms_ratio(got.h, reference) < run.bound(SUM)
    assert got.flags["abort"][0] == 0


def test_routing_by_hand_ties_go_to_the_lower_id(run: Run):
    sizes = NANO | {"num_experts": 4}
    logits = np.array([[1, 2, 2, 0], [0, 0, 0, 0], [-3, -1, -2, -1]], np.float32)
    got = Up(run, "q4g64", sizes, 3, router_logits=logits)
    np.testing.assert_array_equal(got.ids, [[1, 2], [0, 1], [1, 3]])
    np.testing.assert_array_equal(got.weights, np.full((3, 2), 0.5))


@pytest.mark.parametrize("at", [0, 5, 12])
def test_a_router_logit_that_is_not_a_number_does_not_hide(run: Run, at):
    logits = normal(np.random.default_rng(at), 2, 13)
    logits[1, at] = np.nan
    got = Up(run, "q4g64", ODD, 2, router_logits=logits)
    assert np.isfinite(got.weights[0]).all() and np.isnan(got.weights[1]).all()


def test_an_expert_that_is_not_loaded_sets_abort_and_spares_the_others(run: Run):
    logits = np.array([[0, 5, 1, 9, 0, 0, 0, 0]], np.float32)
    slot = np.arange(8, dtype=np.uint32)
    slot[3] = NO_EXPERT
    got = Up(run, "q4g64", NANO, 1, router_logits=logits, expert_slot=slot)
    assert got.flags["abort"][0] == 1 and got.flags["nan"][0] == 0
    np.testing.assert_array_equal(got.ids, [[3, 1]])
    assert np.isnan(got.h[0, 0]).all() and np.isfinite(got.h[0, 1]).all()


SHAPES_OF_ONE_PAIR = [("q4g64", "q8g64w", *shape) for shape in SHAPES]
PAIRS_OF_ONE_SHAPE = [(form, shared_form, ODD, 3) for form in FORMATS for shared_form in FORMATS]


def down_and_reference(run: Run, form, shared_form, sizes, rows):
    rng = np.random.default_rng(5)
    width, inner, shared_inner = (
        sizes[name] for name in ("hidden_size", "moe_intermediate_size", "shared_expert_intermediate_size")
    )
    experts, k = sizes["num_experts"], sizes["num_experts_per_tok"]
    down, shared = random_weight(rng, form, experts, width, inner), random_weight(rng, shared_form, width, shared_inner)
    ids, weights = oracle.topk(normal(rng, rows, experts), k)
    slot = rng.permutation(experts).astype(np.uint32)
    h, hs = normal(rng, rows, k, inner), normal(rng, rows, shared_inner)
    shared_gate, x = normal(rng, rows), normal(rng, rows, width)
    d = oracle.down(h.astype(np.float64), slot[ids], down.dense)
    reference = x + oracle.combine(d, weights, hs @ shared.dense.T, shared_gate)
    buffers = [
        h,
        ids.astype(np.uint32),
        weights.astype(np.float32),
        slot,
        *down.ranges,
        hs,
        *shared.ranges,
        shared_gate,
        x,
    ]
    run(f"experts_down_{form}_{shared_form}_f32", sizes, pack(rows), buffers, (width, rows, 1))
    return x, reference


@pytest.mark.parametrize("form, shared_form, sizes, rows", SHAPES_OF_ONE_PAIR + PAIRS_OF_ONE_SHAPE)
def test_experts_down(run: Run, form, shared_form, sizes, rows):
    assert rms_ratio(*down_and_reference(run, form, shared_form, sizes, rows)) < run.bound(SUM)


def test_the_narrow_tiles_of_many_threads_give_the_same(run: Run):
    many = replace(run, threads=48, devices={})
    for sizes, rows in ((REAL_SHAPE, 2), (ODD, 3)):
        for name in ("h", "ids", "weights"):
            few, narrow = (getattr(Up(each, "q4g64", sizes, rows), name) for each in (run, many))
            np.testing.assert_array_equal(narrow, few)
        few, narrow = (down_and_reference(each, "q4g64", "q4g64", sizes, rows)[0] for each in (run, many))
        np.testing.assert_array_equal(narrow, few)
