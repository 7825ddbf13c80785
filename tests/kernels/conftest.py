"""Every kernel test runs on every instruction set of this machine's CPU."""

from collections.abc import Iterator, Mapping, Sequence

import pytest
from lily import _core

from tests.kernels.harness import EPS, Array, Run


@pytest.fixture(scope="session", params=["baseline", "avx2", "avx512"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs one dispatch; devices are kept per set of sizes."""
    devices: dict[frozenset[tuple[str, int]], _core.Device] = {}

    def run_kernel(
        kernel: str, sizes: Mapping[str, int], args: bytes, buffers: Sequence[Array], extent: tuple[int, int, int]
    ) -> None:
        key = frozenset(sizes.items())
        if key not in devices:
            devices[key] = _core.Device("cpu", sizes=sizes, rms_norm_eps=EPS, threads=2)
        devices[key].run(kernel, args, buffers, extent)

    try:
        _core.set_cpu_isa(request.param)
    except ValueError as error:
        pytest.skip(str(error))
    yield run_kernel
    devices.clear()
    _core.set_cpu_isa("")
