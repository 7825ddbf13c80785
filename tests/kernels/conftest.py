"""Every kernel test runs in every precision, on each instruction set of this CPU and once in the checked mode."""

from pathlib import Path

import pytest

from lily import _core
from lily.errors import DeviceError
from tests.kernels.harness import NANO, Run

COVERAGE = "test_every_kernel.py"
runs: list[Run] = []


@pytest.fixture(scope="session", params=["f32", "i16"])
def activation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session", params=["baseline", "avx2", "avx512", "checked"])
def run(request: pytest.FixtureRequest, activation: str) -> Run:
    """Runs one dispatch; devices are kept per set of sizes."""
    try:
        _core.Device("cpu", sizes=NANO, debug=request.param)
    except DeviceError as error:
        pytest.skip(str(error))
    runs.append(Run("cpu", request.param, activation))
    return runs[-1]


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
    return set().union(*(run.ran for run in runs))
