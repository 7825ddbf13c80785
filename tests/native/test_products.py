"""The native check of the CPU's matrix products, compiled for each instruction set and run where the machine has it."""

import os
import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lily import _core
from lily.errors import DeviceError
from tests.kernels.harness import NANO

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "src/lily_core/device/cpu/kernels"
SOURCES = (
    ROOT / "tests/native/products.cpp",
    *(KERNELS / name for name in ("gemm.cpp", "matvec.cpp", "multiply_loop.cpp", "../isas.cpp")),
)
COMPILER = os.environ.get("CXX", "c++")
OPTIONS = ["-std=c++20", "-O2", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]
FOLDERS = [f"-I{ROOT / folder}" for folder in ("src/lily_core", "shaders")]

PROCESSOR = "armv8" if platform.machine() in ("arm64", "aarch64") else "x86-64"
FLAGS = dict(
    re.findall(rf"set\(LILY_CPU_FLAGS_(\w+) (-march={PROCESSOR}.*)\)", (ROOT / "cmake/cpu_kernels.cmake").read_text())
)


def require(isa: str) -> None:
    """Skips where the machine does not have the instruction set."""
    try:
        _core.Device("cpu", sizes=NANO, debug=isa)
    except DeviceError as error:
        pytest.skip(str(error))


def compiled(isa: str, flags: str, folder: Path) -> Path:
    def compile_one(source: Path) -> Path:
        to = folder / f"{source.stem}.o"
        command = [COMPILER, *OPTIONS, *flags.split(), f"-DLILY_ISA={isa}", *FOLDERS, "-c", str(source)]
        subprocess.run([*command, "-o", str(to)], check=True)
        return to

    with ThreadPoolExecutor() as pool:
        objects = list(pool.map(compile_one, SOURCES))
    program = folder / "products"
    subprocess.run([COMPILER, *flags.split(), *map(str, objects), "-o", str(program)], check=True)
    return program


def digest(program: Path) -> str:
    """That of the tiles, of a program that found every product right."""
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    match = re.search(r"^digest (\w+)\n[1-9]\d+ passed, 0 failed$", done.stdout, re.MULTILINE)
    assert match, done.stdout
    return match[1]


pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="needs a C++ compiler")


@pytest.mark.parametrize("isa", FLAGS)
def test_products_are_those_of_plain_loops(isa: str, tmp_path: Path) -> None:
    require(isa)
    digest(compiled(isa, FLAGS[isa], tmp_path))


@pytest.mark.parametrize("isa", FLAGS)
def test_nothing_is_undefined(isa: str, tmp_path: Path) -> None:
    require(isa)
    digest(compiled(isa, f"{FLAGS[isa]} -fsanitize=undefined -fno-sanitize-recover=all", tmp_path))


def test_tiles_of_amx_are_those_of_avx512(tmp_path: Path) -> None:
    """To the bit, with the tile registers in plain C++, since few machines have them."""
    require("avx512")
    emulation = f"{FLAGS['avx512']} -include {ROOT / 'tests/native/amx_emulation.h'}"
    folders = [tmp_path / "amx", tmp_path / "avx512"]
    for folder in folders:
        folder.mkdir()
    of_amx = digest(compiled("amx", emulation, folders[0]))
    assert of_amx == digest(compiled("avx512", FLAGS["avx512"], folders[1]))


# Instructions that multiply: integers, floats. At least one for each of 12 accumulators or more, or of four tiles.
MULTIPLICATIONS = {
    "x86-64": {
        "baseline": ("pmaddwd", "mulps"),
        "avx2": ("vpmaddwd", "vfmadd"),
        "avx512": ("vpdpbusd", "vfmadd"),
        "avx512_pairs": ("vpdpbusd", "vfmadd"),
        "amx": ("tdpbsud", "vfmadd"),
    },
    "armv8": {"baseline": ("smull2?", "fmla"), "dotprod": ("sdot", "fmla"), "i8mm": ("usmmla", "fmla")},
}


@pytest.mark.parametrize("isa", FLAGS)
def test_no_compiler_leaves_a_multiplication_out_of_the_bare_loop(isa: str) -> None:
    command = [COMPILER, *OPTIONS, *FLAGS[isa].split(), f"-DLILY_ISA={isa}", *FOLDERS]
    command += ["-S", str(KERNELS / "multiply_loop.cpp"), "-o", "-"]
    assembly = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for instruction in MULTIPLICATIONS[PROCESSOR][isa]:
        # The products of a register with one that the compiler took for 1, or for the same as before, would be missing.
        assert len(re.findall(rf"^\s+{instruction}", assembly, re.MULTILINE)) >= (4 if instruction == "tdpbsud" else 12)
