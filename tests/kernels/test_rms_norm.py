"""rms_norm, the norm of a chunk's rows."""

import numpy as np
import pytest

from tests.kernels.harness import EPS, NANO, Run, normal, pack, rms_ratio, unwritten
from tests.oracles.rows import norm


@pytest.mark.parametrize("width", [64, 192, 2048])
@pytest.mark.parametrize("m", [1, 7, 8, 9, 65])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])  # the smallest is where eps counts
def test_rms_norm(run: Run, width: int, m: int, scale: float) -> None:
    rng = np.random.default_rng([m, width])
    x, gain, y = normal(rng, m, width, scale=scale), normal(rng, width) + 1, unwritten(m, width)
    run("rms_norm_f32", NANO | {"hidden_size": width}, pack(m), [x, gain, y], (m, 1, 1))
    assert rms_ratio(y, norm(x, gain, EPS)) < run.bound(1e-6)


def test_a_norm_that_no_float_holds_is_nan(run: Run) -> None:
    """A row of numbers whose squares overflow would become zeros, and look like any other."""
    x, y = np.ones((2, 64), np.float32), unwritten(2, 64)
    x[1] = 1e20
    run("rms_norm_f32", NANO, pack(2), [x, np.ones(64, np.float32), y], (2, 1, 1))
    assert np.isfinite(y[0]).all() and np.isnan(y[1]).all()
