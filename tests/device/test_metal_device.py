"""The Metal device, over software Metal (tests/softmetal) where there is no Mac: both generations of the API."""

import struct

import numpy as np
import pytest

from lily import _core
from lily.errors import DeviceError
from tests.kernels.harness import NANO
from tests.oracles.rows import norm

SIZES = NANO | {"hidden_size": 256}
ROWS = 64
ARGS = struct.pack("<I", ROWS)


def metal(debug=""):
    try:
        return _core.Device("metal", sizes=SIZES, debug=debug)
    except DeviceError as error:
        if error.code == "unavailable":
            pytest.skip(str(error))
        raise


@pytest.mark.parametrize(("debug", "api"), [("", "Metal 4"), ("metal3", "Metal 3"), ("serial", "Metal 4")])
def test_runs_a_kernel(debug, api):
    device = metal(debug)
    assert device.description.endswith(api)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, SIZES["hidden_size"]), dtype=np.float32)
    gain = rng.standard_normal(SIZES["hidden_size"], dtype=np.float32)
    y = np.full(x.shape, np.nan, np.float16)
    device.run("rms_norm_f16", ARGS, [x, gain, y], (ROWS, 1, 1))
    np.testing.assert_allclose(y, norm(x, gain, 1e-6), rtol=1e-3, atol=1e-4)
