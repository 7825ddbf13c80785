"""Every kernel test runs on every instruction set of this machine's CPU, and once in the checked mode."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from lily import _core
from lily.errors import DeviceError
from tests.kernels.harness import EPS, NANO, Array, Run

COVERAGE = "test_every_kernel.py"
ran: set[str] = set()  # kernels that a test has run


@pytest.fixture(scope="session", params=["baseline", "avx2", "avx512", "checked"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs one dispatch; devices are kept per set of sizes."""
    devices: dict[frozenset[tuple[str, int]], _core.Device] = {}

    def run_kernel(
        kernel: str, sizes: Mapping[str, int], args: bytes, buffers: Sequence[Array], extent: tuple[int, int, int]
    ) -> None:
        key = frozenset(sizes.items())
        if key not in devices:
            devices[key] = _core.Device("cpu", sizes=sizes, rms_norm_eps=EPS, threads=2, debug=request.param)
        # The binding takes plain numbers: table rows go as their bytes.
        plain = [buffer.view(np.uint8) if buffer.dtype.names else buffer for buffer in buffers]
        devices[key].run(kernel, args, plain, extent)
        ran.add(kernel)

    try:
        _core.Device("cpu", sizes=NANO, debug=request.param)
    except DeviceError as error:
        pytest.skip(str(error))
    return run_kernel


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name == COVERAGE)  # stable: what the others ran is known then


@pytest.fixture
def kernels_run(request: pytest.FixtureRequest) -> set[str]:
    """Names of the kernels that the tests of this folder ran; skips when some of them were not asked for."""
    folder, config = Path(__file__).parent, request.config
    collected = {item.path for item in request.session.items}
    partial = config.option.keyword or config.option.markexpr or any("::" in arg for arg in config.args)
    if partial or not collected >= set(folder.glob("test_*.py")):
        pytest.skip("only some of the kernel tests run")
    return ran
