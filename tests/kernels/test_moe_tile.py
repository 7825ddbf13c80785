"""The MoE block of a prefill chunk: choice, plan, grouped products over gathered rows, weighted sum."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernels.harness import (
    EXPERT_BLOCK,
    FLAGS,
    FORMATS,
    NANO,
    NO_EXPERT,
    Array,
    Run,
    normal,
    pack,
    random_weight,
    rms_ratio,
    unwritten,
)  # fmt: skip
from tests.oracles import moe as oracle

BUDGET = 3e-6
# Experts and how many a row takes: around a simdgroup and a thread each. Few, because a GPU builds a kernel for each.
SIZES = [(1, 1), (5, 2), (8, 8), (32, 10), (33, 4), (70, 7), (600, 10)]


@settings(max_examples=40, deadline=None)
@given(m=st.integers(1, 40), sizes=st.sampled_from(SIZES), levels=st.integers(1, 100))
def test_topk(run: Run, m: int, sizes: tuple[int, int], levels: int) -> None:
    """Few levels make many ties."""
    experts, k = sizes
    logits = np.random.default_rng([m, experts, levels]).integers(-levels, levels, (m, experts)).astype(np.float32) / 8
    ids, weights = np.full((m, k), NO_EXPERT, np.uint32), unwritten(m, k)
    run(
        "topk_f32",
        NANO | {"num_experts": experts, "num_experts_per_tok": k},
        pack(m),
        [logits, ids, weights],
        (m, 1, 1),
    )
    expected_ids, expected_weights = oracle.topk(logits.astype(np.float64), k)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(weights, expected_weights, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("at", [0, 3, 69])
def test_a_router_logit_that_is_not_a_number_does_not_hide(run: Run, at: int) -> None:
    """Wherever it stands, chosen or not: the row's weights are NaN, and no other row's."""
    logits = np.random.default_rng(at).standard_normal((3, 70)).astype(np.float32)
    logits[1, at] = np.nan
    ids, weights = np.full((3, 7), NO_EXPERT, np.uint32), unwritten(3, 7)
    run("topk_f32", NANO | {"num_experts": 70, "num_experts_per_tok": 7}, pack(3), [logits, ids, weights], (3, 1, 1))
    assert np.isnan(weights[1]).all() and np.isfinite(weights[[0, 2]]).all()
    assert (ids < 70).all()


def routing(rng: np.random.Generator, m: int, experts: int, k: int, skew: float) -> Array:
    """Distinct experts per row; skew > 0 makes low ids popular."""
    scores = rng.standard_normal((m, experts)) - skew * np.arange(experts)
    return np.ascontiguousarray(np.argsort(-scores, axis=1)[:, :k].astype(np.uint32))


def run_plan(run: Run, sizes: dict[str, int], ids: Array) -> tuple[Array, Array]:
    experts = sizes["num_experts"]
    order = np.full(ids.size, NO_EXPERT, np.uint32)
    blocks = np.zeros(min(experts, ids.size) + ids.size // 32, EXPERT_BLOCK)
    run("moe_plan_f32", sizes, pack(len(ids)), [ids, order, blocks], (1, 1, 1))
    return order, blocks


@settings(max_examples=40, deadline=None)
@given(m=st.integers(1, 300), sizes=st.sampled_from(SIZES), skew=st.sampled_from([0.0, 0.3, 5.0]))
def test_moe_plan(run: Run, m: int, sizes: tuple[int, int], skew: float) -> None:
    experts, k = sizes
    ids = routing(np.random.default_rng(m), m, experts, k, skew)
    order, blocks = run_plan(run, NANO | {"num_experts": experts, "num_experts_per_tok": k}, ids)
    expected_order, expected_blocks = oracle.plan(ids, experts)
    np.testing.assert_array_equal(order, expected_order)
    assert blocks.tolist() == expected_blocks


EXPERTS_CASES = [*((form, 20, 0.0) for form in FORMATS), ("q4g64", 1, 0.0), ("q4g64", 65, 0.3), ("q4g64", 600, 5.0)]


@pytest.mark.parametrize(("form", "m", "skew"), EXPERTS_CASES)
def test_experts(run: Run, form: str, m: int, skew: float) -> None:
    """Up, down and the sum, with the experts in shuffled slots and one that nobody chose not loaded."""
    experts, k, hidden, width = 12, 3, 320, 192
    sizes = NANO | {
        "num_experts": experts,
        "num_experts_per_tok": k,
        "hidden_size": hidden,
        "moe_intermediate_size": width,
    }
    rng = np.random.default_rng(m)
    y, x, s = normal(rng, m, hidden), normal(rng, m, hidden), normal(rng, m, hidden)
    weights, shared_gate = rng.dirichlet(np.ones(k), m).astype(np.float32), normal(rng, m)
    ids = routing(rng, m, experts - 1, k, skew)
    gate, up = random_weight(rng, form, experts, width, hidden), random_weight(rng, form, experts, width, hidden)
    down = random_weight(rng, form, experts, hidden, width)
    slots = rng.permutation(experts).astype(np.uint32)
    slots[experts - 1] = NO_EXPERT
    order, blocks = run_plan(run, sizes, ids)

    h, d, flags = unwritten(m * k, width), unwritten(m, k, hidden), np.zeros(1, FLAGS)
    plan = [order, blocks, slots]
    run(
        f"experts_up_{form}_f32_tile",
        sizes,
        pack(m),
        [y, *plan, *gate.ranges, *up.ranges, h, flags],
        (width, len(blocks), 1),
    )
    expected_h = oracle.up(y.astype(np.float64), slots[ids], gate.dense, up.dense)
    assert rms_ratio(h, expected_h.reshape(-1, width)[order]) < run.bound(BUDGET)
    assert flags["abort"] == 0 and flags["nan"] == 0

    run(f"experts_down_{form}_f32_tile", sizes, pack(m), [h, *plan, *down.ranges, d], (hidden, len(blocks), 1))
    expected_d = oracle.down(expected_h, slots[ids], down.dense)
    assert rms_ratio(d, expected_d) < run.bound(BUDGET)

    expected_x = x + oracle.combine(d.astype(np.float64), weights, s, shared_gate)
    run("moe_combine_f32", sizes, pack(m), [d, weights, s, shared_gate, x], (m, 1, 1))
    assert rms_ratio(x, expected_x) < run.bound(BUDGET)


def test_an_expert_that_is_not_loaded_aborts(run: Run) -> None:
    rng = np.random.default_rng(0)
    m, k = 5, NANO["num_experts_per_tok"]
    ids = routing(rng, m, NANO["num_experts"], k, 0.0)
    gate, up = (random_weight(rng, "q4g64", NANO["num_experts"], 64, 64) for _ in range(2))
    order, blocks = run_plan(run, NANO, ids)
    slots, flags = np.arange(NANO["num_experts"], dtype=np.uint32), np.zeros(1, FLAGS)
    slots[ids[2, 1]] = NO_EXPERT
    buffers = [normal(rng, m, 64), order, blocks, slots, *gate.ranges, *up.ranges, unwritten(m * k, 64), flags]
    run("experts_up_q4g64_f32_tile", NANO, pack(m), buffers, (64, len(blocks), 1))
    assert flags["abort"] == 1
