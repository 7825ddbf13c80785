"""The prefill products of all rows with one weight: every format, row counts around the tiles, every output."""

from collections.abc import Mapping

import numpy as np
import pytest

from tests.kernels.harness import (
    FORMATS,
    NANO,
    Array,
    Run,
    normal,
    pack,
    quantised,
    random_weight,
    rms_ratio,
    unwritten,
)
from tests.oracles.rows import swiglu

PRODUCT_BUDGET = 2e-6
MOE_BUDGET = 3e-6


def store(run: Run, op: str, form: str, sizes: Mapping[str, int], m: int, width: int, parts: list[int]) -> None:
    """Runs `op`, whose output columns are cut into `parts`, and compares each part with y @ W.T."""
    rng = np.random.default_rng([m, width, *parts])
    y, w = normal(rng, m, width), random_weight(rng, form, sum(parts), width)
    outputs = [unwritten(m, part) for part in parts]
    run(f"{op}_{form}_f32_tile", sizes, pack(m), [y, *w.ranges, *outputs], (sum(parts), m, 1))
    expected = np.split(y @ w.dense.T, np.cumsum(parts)[:-1], axis=1)
    for got, reference in zip(outputs, expected, strict=True):
        assert rms_ratio(got, reference) < run.bound(PRODUCT_BUDGET)


def add(run: Run, op: str, form: str, sizes: Mapping[str, int], m: int, width: int) -> None:
    """Runs `op`, which adds y @ W.T to the residual."""
    rng = np.random.default_rng([m, width])
    hidden = sizes["hidden_size"]
    y, w, x = normal(rng, m, width), random_weight(rng, form, hidden, width), normal(rng, m, hidden)
    expected = x + y @ w.dense.T
    run(f"{op}_{form}_f32_tile", sizes, pack(m), [y, *w.ranges, x], (hidden, m, 1))
    assert rms_ratio(x, expected) < run.bound(PRODUCT_BUDGET)


def rows_against_tiles(test: Array) -> Array:
    """Every format at one shape, and one format at the row counts around every tile size."""
    cases = [(form, 65, 320) for form in FORMATS]
    cases += [("q4g64", m, 192) for m in (1, 2, 3, 5, 6, 7, 11, 12, 13, 63, 64, 200, 255, 256, 257, 513)]
    return pytest.mark.parametrize(("form", "m", "hidden"), [*cases, ("q8g64", 33, 2048), ("q4g64", 66, 2048)])(test)


@rows_against_tiles
def test_gdn_in(run: Run, form: str, m: int, hidden: int) -> None:
    store(run, "gdn_in", form, NANO | {"hidden_size": hidden}, m, hidden, [512, 256, 8])


@pytest.mark.parametrize("form", FORMATS)
def test_attn_in(run: Run, form: str) -> None:
    sizes = NANO | {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 576}
    store(run, "attn_in", form, sizes, 37, 576, [192, 192, 64, 64])


ROUTER_CASES = [*((form, 16) for form in FORMATS), *(("q8g64", e) for e in (1, 7, 15, 31, 32, 63, 64, 127, 128, 256))]


@pytest.mark.parametrize(("form", "experts"), ROUTER_CASES)
def test_router(run: Run, form: str, experts: int) -> None:
    """The gate's row lies behind the experts': an odd number of columns."""
    store(run, "router", form, NANO | {"num_experts": experts, "hidden_size": 256}, 9, 256, [experts, 1])


@pytest.mark.parametrize("form", FORMATS)
def test_shared_down(run: Run, form: str) -> None:
    sizes = NANO | {"shared_expert_intermediate_size": 512, "hidden_size": 192}
    store(run, "shared_down", form, sizes, 70, 512, [192])


@pytest.mark.parametrize("form", FORMATS)
def test_the_ends_of_all_ranges(run: Run, form: str) -> None:
    """Codes and rows of the largest numbers of either sign, in every order: what is computed in bytes must not wrap."""
    width, top = 128, 2 ** int(form[1]) - 1
    signs = [np.where(np.arange(width) // n % 2 == 0, 1.0, -1.0) for n in (1, 2, 4, 8, 16, 32, 64, 128)]
    rng = np.random.default_rng(width)
    shades = rng.choice([-1.0, -0.999, -0.004, 0.0, 0.004, 0.999, 1.0], (8, width))
    y = np.concatenate([signs, np.negative(signs), shades]).astype(np.float32)
    orders = [np.where(np.arange(width) // n % 2 == 0, top, 0) for n in (1, 2, 4, 8, 16, 32, 64, 128)]
    codes = np.concatenate([orders, top - np.array(orders), rng.choice([0, top], (16, width))]).astype(np.uint8)
    ones = np.ones((len(codes), width // 64))
    w = quantised(form, codes, ones / top, 0 * ones)
    to = unwritten(len(y), len(w.dense))
    sizes = NANO | {"shared_expert_intermediate_size": width, "hidden_size": len(w.dense)}
    run(f"shared_down_{form}_f32_tile", sizes, pack(len(y)), [y, *w.ranges, to], (len(w.dense), len(y), 1))
    np.testing.assert_allclose(to, y @ w.dense.T, atol=width * run.bound(2e-6, 2e-4))


@pytest.mark.parametrize("form", FORMATS)
def test_gdn_out(run: Run, form: str) -> None:
    sizes = NANO | {"linear_num_value_heads": 32, "linear_value_head_dim": 128, "hidden_size": 192}
    add(run, "gdn_out", form, sizes, 20, 4096)


@pytest.mark.parametrize("form", FORMATS)
def test_attn_out(run: Run, form: str) -> None:
    add(run, "attn_out", form, NANO | {"num_attention_heads": 16, "head_dim": 256, "hidden_size": 192}, 20, 4096)


@pytest.mark.parametrize(("form", "m"), [*((form, 40) for form in FORMATS), ("q4g64", 1), ("q4g64", 257)])
def test_shared_up(run: Run, form: str, m: int) -> None:
    rng = np.random.default_rng(m)
    hidden, width = 448, 192
    sizes = NANO | {"hidden_size": hidden, "shared_expert_intermediate_size": width}
    y, gate = normal(rng, m, hidden), random_weight(rng, form, width, hidden)
    up = random_weight(rng, form, width, hidden)
    hs = unwritten(m, width)
    run(f"shared_up_{form}_f32_tile", sizes, pack(m), [y, *gate.ranges, *up.ranges, hs], (width, m, 1))
    assert rms_ratio(hs, swiglu(y.astype(np.float64), gate.dense, up.dense)) < run.bound(MOE_BUDGET)
