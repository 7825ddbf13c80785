"""python -m tools.msl"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHADERS = Path(__file__).parent / "shaders"


def msl(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "tools.msl", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True
    )


def test_lint_of_good_and_bad_files(tmp_path):
    assert msl("lint", SHADERS / "reduce.metal").returncode == 0
    bad = tmp_path / "bad.metal"
    bad.write_text("#include <metal_stdlib>\nconstant float HALF = 0.5;\n")
    done = msl("lint", SHADERS / "reduce.metal", bad)
    assert done.returncode == 1
    assert done.stdout == "bad.metal:2: literal 0.5 needs an f or h: double is not MSL\n"


def test_outputs(tmp_path):
    assert msl("cpp", SHADERS / "reduce.metal", "-o", tmp_path / "reduce.so").returncode == 0
    assert (tmp_path / "reduce.so").read_bytes().startswith(b"\x7fELF")
    assert msl("ptx", SHADERS / "reduce.metal", "-o", tmp_path / "reduce.ptx").returncode == 0
    assert ".entry msl_entry_row_sum" in (tmp_path / "reduce.ptx").read_text()


def test_threadgroup_memory_over_the_limit(tmp_path):
    path = tmp_path / "large.metal"
    path.write_text(
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "kernel void large(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {\n"
        "  threadgroup float t[SIZE];\n  t[i] = y[i];\n  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        "  y[i] = t[(i * 7) % SIZE];\n}\n"
    )
    fits = msl("tgmem", path, "-DSIZE=8192")
    assert (fits.returncode, fits.stdout.split()) == (0, ["large", "32768"])
    over = msl("tgmem", path, "-DSIZE=8193")
    assert over.returncode == 1
    assert "32772  more than 32768 bytes" in over.stdout


def test_the_macros_of_the_host(tmp_path):
    path = tmp_path / "sizes.metal"
    path.write_text(
        "#include <metal_stdlib>\nusing namespace metal;\n"
        'static_assert(LILY_HIDDEN_SIZE == 2048u && LILY_CONV_CHANNELS == 8192u && LILY_WEIGHT_BITS == BITS, "");\n'
        "kernel void f(device float* y [[buffer(0)]]) { y[0] = LILY_RMS_NORM_EPS; }\n"
    )
    assert msl("lint", path, "-DBITS=4").stdout == ""
    assert msl("lint", path, "-DBITS=8", "-DLILY_WEIGHT_BITS=8").stdout == ""
    assert "undeclared identifier 'LILY_HIDDEN_SIZE'" in msl("lint", "--plain", path, "-DBITS=4").stdout


@pytest.mark.parametrize("command", ["cpp", "ptx", "tgmem"])
def test_a_compile_error_is_on_stderr(command, tmp_path):
    path = tmp_path / "bad.metal"
    path.write_text("#include <metal_stdlib>\nkernel void f(device float* y [[buffer(0)]]) {\n  y[0] = z;\n}\n")
    done = msl(command, path, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert "bad.metal:3:10: error: use of undeclared identifier 'z'" in done.stderr
