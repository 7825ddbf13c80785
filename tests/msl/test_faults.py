"""Faults planted in good shaders, each with the check that catches it."""

import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from tests.msl.runtime import ROOT, KernelFault, run
from tests.msl.test_cpu import SHADERS, bfloat, from_bfloat, kernel, row_sum
from tests.softmetal import control
from tools.msl.errors import ShaderError

X = np.random.default_rng(0).uniform(0.5, 1.5, (4, 256)).astype(np.float32)


def broken(name, good, bad):
    """The text of a shader with one thing changed."""
    text = (SHADERS / f"{name}.metal").read_text(encoding="utf-8")
    assert good in text
    return text.replace(good, bad, 1)


def matrix(source, reverse):
    m, n, k = 16, 32, 64
    rng = np.random.default_rng(3)
    a, b = bfloat(rng.standard_normal((m, k))), bfloat(rng.standard_normal((n, k)))
    buffers = [a, b, np.zeros((m, n), np.float32), np.array([m, n, k, 0], np.uint32)]
    c = run(source, "matrix", buffers, groups=(n // 16, m // 16, 1), threads=(128, 1, 1), reverse=reverse)[2]
    return np.allclose(c, from_bfloat(a).astype(np.float64) @ from_bfloat(b).astype(np.float64).T, atol=1e-3)


BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def test_missing_barrier_in_a_reduction():
    source = broken("reduce", BARRIER, "")
    y = row_sum(X, source)
    assert not np.allclose(y, X / X.sum(1, keepdims=True), rtol=1e-4)  # what is read too early is NaN


@pytest.mark.parametrize("which", [0, 1])
def test_missing_barrier_around_a_tile(which):
    text = (SHADERS / "matrix.metal").read_text(encoding="utf-8")
    parts = text.split(BARRIER)
    assert len(parts) == 3
    source = parts[0] + (BARRIER if which else "") + parts[1] + ("" if which else BARRIER) + parts[2]
    assert matrix(text, reverse=False)
    assert not (matrix(source, reverse=False) and matrix(source, reverse=True))


def test_barrier_in_a_branch():
    source = broken("reduce", "if (lane == 0) partial[simdgroup] = sum;", f"if (lane == 0) {{ {BARRIER} }}")
    with pytest.raises(
        KernelFault, match="threads wait at different barriers: thread 0 at shader:16, thread 1 at shader:17"
    ):
        row_sum(X, source)


def test_barrier_not_reached_by_all():
    source = broken("reduce", BARRIER, f"if (tid >= 32) return; {BARRIER}")
    with pytest.raises(
        KernelFault, match=r"not reached by every thread: thread 0 at shader:17, thread 127 has returned"
    ):
        row_sum(X, source)


def test_simdgroup_operation_in_a_branch():
    source = broken("reduce", "sum = simd_sum(sum);", "if (lane < 16) sum = simd_sum(sum);")
    with pytest.raises(
        KernelFault, match=r"while a lane waits at a threadgroup barrier: thread 0 at .*:15, thread 16 at .*:17"
    ):
        row_sum(X, source)


def test_simdgroup_operations_at_two_places():
    source = broken("reduce", "sum = simd_sum(sum);", "if (lane < 9) sum = simd_sum(sum);\nelse sum = simd_max(sum);")
    with pytest.raises(KernelFault, match="divergent control flow: thread 0 at shader:15, thread 9 at shader:16"):
        row_sum(X, source)


def test_simdgroup_operation_after_a_lane_returned():
    source = broken("reduce", "sum = simd_sum(sum);", "if (lane == 7) return;\nsum = simd_sum(sum);")
    with pytest.raises(KernelFault, match="after a lane returned: thread 0 at shader:16, thread 7 has returned"):
        row_sum(X, source)


MULTIPLY = "simdgroup_multiply_accumulate(sum, l, r, sum);"


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("good", [MULTIPLY, "simdgroup_load(l, left + row * DEPTH + k, DEPTH);"])
def test_simdgroup_matrices_in_a_branch(good, reverse):
    source = broken("matrix", good, f"if (tid % 32 != 7) {{ {good} }}")
    with pytest.raises(KernelFault, match=r"simdgroup matrices in divergent control flow: thread \d+ last at shader:2"):
        matrix(source, reverse)


def test_simdgroup_matrices_after_a_lane_returned():
    store = "simdgroup_store(sum, c + (m0 + row)"
    source = broken("matrix", store, f"if (tid == 31) return;\n  {store}")
    with pytest.raises(KernelFault, match="thread 0 last at shader:33, thread 31 last at shader:28"):
        matrix(source, False)


@pytest.mark.parametrize("which", [0, 1])
def test_missing_barrier_of_a_simdgroup_around_a_matrix(which):
    """The lane that computes runs before all others, or behind them."""
    parts = ["tile[lane] = y[lane]; tile[lane + 32] = y[lane + 32];", "simdgroup_float8x8 m; simdgroup_load(m, tile);",
             "tile[lane] = 0.0f; tile[lane + 32] = 0.0f; simdgroup_store(m, y);"]  # fmt: skip
    barriers = ["simdgroup_barrier(mem_flags::mem_threadgroup);"] * 2
    x = np.arange(64, dtype=np.float32)

    def is_right(reverse):
        text = kernel(
            f"threadgroup float tile[64]; {parts[0]} {barriers[0]} {parts[1]} {barriers[1]} {parts[2]}",
            "device float* y [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]",
        )
        source = text.replace("<metal_stdlib>", "<metal_stdlib>\n#include <metal_simdgroup_matrix>", 1)
        return np.array_equal(run(source, "f", [x], reverse=reverse)[0], x)

    assert is_right(False) and is_right(True)
    barriers[which] = ""
    assert is_right(False) != is_right(True)


def test_threadgroup_memory_read_before_it_is_written():
    source = broken("reduce", "if (lane == 0) partial[simdgroup] = sum;", "")
    assert np.isnan(row_sum(X, source)).all()


def test_read_past_a_buffer():
    source = broken("reduce", "sum += from[i];", "sum += from[i + (row == 3 && i == 255 ? 4 : 0)];")
    with pytest.raises(KernelFault, match=r"access outside a buffer: thread \(127, 0, 0\) of threadgroup \(3, 0, 0\)"):
        row_sum(X, source)


def test_write_past_a_buffer():
    source = kernel("y[i + (i == 31 ? 1 : 0)] = 1.0f;")
    with pytest.raises(KernelFault, match="access outside a buffer"):
        run(source, "f", [np.zeros(32, np.float32)])


def test_index_past_a_threadgroup_array():
    source = broken("reduce", "partial[simdgroup] = sum;", "partial[simdgroup * 11] = sum;")
    with pytest.raises(KernelFault, match=r"index outside an array at shader:16: thread \(96, 0, 0\)"):
        row_sum(X, source)


def test_integer_division_by_zero():
    source = kernel("y[i] = float(7u / (i / 32));")
    with pytest.raises(KernelFault, match=r"integer division by zero or overflow: thread \(0, 0, 0\)"):
        run(source, "f", [np.zeros(32, np.float32)])


def test_shift_by_all_bits():
    with pytest.raises(KernelFault, match="shift by more bits than there are at shader:3"):
        run(kernel("y[i] = float(1u << (i + 1));"), "f", [np.zeros(32, np.float32)])


def test_a_vector_that_is_not_aligned():
    source = kernel("*(device float4*)(y + 1) = float4(0.0f);")
    with pytest.raises(KernelFault, match="access that is not aligned to its type"):
        run(source, "f", [np.zeros(32, np.float32)])


def test_a_fault_leaves_the_runtime_usable():
    with pytest.raises(KernelFault):
        run(kernel("y[32] = 0.0f;"), "f", [np.zeros(32, np.float32)])
    assert (run(kernel("y[i] = simd_sum(1.0f);"), "f", [np.zeros(32, np.float32)])[0] == 32).all()


@pytest.mark.parametrize("order", ["rm", "rmr", "mrm"])
def test_a_fault_outside_of_kernels_ends_the_process(order):
    """Also where both runtimes, this one (r) and that of software Metal (m), were put in front of the other."""
    if not control.is_present():
        pytest.skip("lily was built without software Metal")
    code = f"""
        import ctypes, faulthandler
        import numpy as np
        from lily import _core
        from tests.kernels.harness import NANO, pack
        from tests.msl.runtime import run

        faulthandler.enable()
        device = _core.Device("metal", sizes=NANO)
        source = {kernel("y[i] = 1.0f;")!r}
        for which in {order!r}:
            if which == "r":
                run(source, "f", [np.zeros(32, np.float32)])
            else:
                x = np.ones((1, 64), np.float32)
                device.run("rms_norm_f16", pack(1), [x, x[0].copy(), x.astype(np.float16)], (1, 1, 1))
        ctypes.string_at(8)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == -signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in done.stderr  # the handler that was there before both


@pytest.mark.parametrize(
    ("what", "good", "bad", "message"),
    [
        (
            "space",
            "device const float* from = x",
            "threadgroup const float* from = x",
            r"shader:12:\d+: error: cannot init",
        ),
        (
            "no space",
            "device const float* from = x",
            "const float* from = x",
            r"shader:12:\d+: error: cannot initialize",
        ),
        ("write through const", "sum += from[i];", "from[i] = sum;", r"shader:14:\d+: error: .*not assignable"),
        ("constructor", "sum += from[i];", "sum += float4(from[i], sum).x;", "wrong number of elements"),
        ("name", "sum += from[i];", "sum += form[i];", r"shader:14:\d+: error: use of undeclared identifier 'form'"),
        ("size of as_type", "sum += from[i];", "sum += as_type<float>(half(from[i]));", "the sizes differ"),
    ],
)
def test_compile_errors(what, good, bad, message):
    with pytest.raises(ShaderError, match=message):
        row_sum(X, broken("reduce", good, bad))
