"""Every kernel test runs on every device of this build, in every precision: on the CPU with each instruction set and
once in the checked mode, on Metal with halves, matrix products of a prefill in both of their forms."""

import platform
from pathlib import Path

import pytest

from lily import _core
from lily.errors import DeviceError
from tests.kernels.harness import NANO, Run

COVERAGE = "test_every_kernel.py"
runs: list[Run] = []

IS_ARM64 = platform.machine() in ("arm64", "aarch64")
MODES = ("baseline", *(("dotprod", "i8mm") if IS_ARM64 else ("avx2", "avx512", "avx512_pairs", "amx")), "checked")
CPU = [("cpu", mode, activation) for activation in ("f32", "i16") for mode in MODES]
METAL = [("metal", "simdgroup", "f16")]
TENSOR = [("metal", "tensor", "f16")]
OF_BOTH_FORMS = ("test_attn_prefill", "test_dense_tile", "test_moe_tile")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "run" in metafunc.fixturenames:
        both = metafunc.module.__name__.rpartition(".")[2] in OF_BOTH_FORMS
        devices = CPU + METAL + (TENSOR if both else [])
        if only := metafunc.definition.get_closest_marker("only"):
            devices = [device for device in devices if set(only.args) & set(device)]
        ids = ["-".join(device) for device in devices]
        metafunc.parametrize("run", devices, indirect=True, scope="session", ids=ids)


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest) -> Run:
    """Runs one dispatch; devices are kept per set of sizes."""
    device, debug, _ = request.param
    try:
        _core.Device(device, sizes=NANO, debug=debug)
    except DeviceError as error:
        pytest.skip(str(error))
    runs.append(Run(*request.param))
    return runs[-1]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name == COVERAGE)  # stable: what the others ran is known then


@pytest.fixture
def kernels_run(request: pytest.FixtureRequest) -> set[tuple[str, str]]:
    """(device, kernel) of all that the tests of this folder ran; skips when some of them were not asked for."""
    folder, config = Path(__file__).parent, request.config
    collected = {item.path for item in request.session.items}
    partial = config.option.keyword or config.option.markexpr or any("::" in arg for arg in config.args)
    if partial or not collected >= set(folder.glob("test_*.py")):
        pytest.skip("only some of the kernel tests run")
    return {(run.device, name) for run in runs for name in run.ran}
