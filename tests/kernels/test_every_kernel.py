"""No kernel without a test: what the device has is what the tests of this folder ran. Runs behind all of them."""

from lily import _core
from tests.kernels.harness import NANO


def test_every_kernel_is_run_by_a_test(kernels_run: set[str]) -> None:
    names = set(_core.Device("cpu", sizes=NANO).kernel_names())
    untested = sorted(names - kernels_run)
    assert untested == []
