"""No kernel without a test: what each device has is what the tests of this folder ran. Runs behind all of them."""

import pytest

from lily import _core
from lily.errors import DeviceError
from tests.kernels.harness import NANO


@pytest.mark.parametrize("device", ["cpu", "metal"])
def test_every_kernel_is_run_by_a_test(kernels_run: set[tuple[str, str]], device: str) -> None:
    try:
        names = set(_core.Device(device, sizes=NANO).kernel_names())
    except DeviceError as error:
        pytest.skip(str(error))
    untested = sorted(name for name in names if (device, name) not in kernels_run)
    assert untested == []
