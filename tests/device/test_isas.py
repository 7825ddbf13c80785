"""The instruction sets that the CPU device finds: were one missed, all of its tests would be skipped."""

import platform
import re
from pathlib import Path

import pytest

from lily import _core
from lily.errors import DeviceError
from tests.kernels.harness import NANO

CPUINFO = Path("/proc/cpuinfo")
AVX2 = {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512_vnni"}
# The flags by which Linux names what each needs.
NEEDS = {
    "x86_64": {
        "amx": AVX512 | {"amx_tile", "amx_int8"},
        "avx512_pairs": AVX512,
        "avx512": AVX512,
        "avx2": AVX2,
        "baseline": set(),
    },
    "aarch64": {"i8mm": {"asimddp", "i8mm"}, "dotprod": {"asimddp"}, "baseline": set()},
}

pytestmark = pytest.mark.skipif(
    not CPUINFO.exists() or platform.machine() not in NEEDS,
    reason="this machine has no list of flags that is known here",
)


def is_available(isa: str) -> bool:
    try:
        return _core.Device("cpu", sizes=NANO, debug=isa).description.startswith(f"{isa}, ")
    except DeviceError:
        return False


def test_the_sets_are_those_of_the_processor_and_the_best_one_runs() -> None:
    text = CPUINFO.read_text()
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    needs = NEEDS[platform.machine()]
    expected = [isa for isa in needs if needs[isa] <= flags]
    assert [isa for isa in needs if is_available(isa)] == expected
    if "avx512" in expected and "AuthenticAMD" not in text:  # only AMD's cores add beside their products
        expected.remove("avx512_pairs")
    assert _core.Device("cpu", sizes=NANO).description.startswith(f"{expected[0]}, ")
