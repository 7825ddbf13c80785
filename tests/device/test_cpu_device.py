"""The CPU device itself: instruction sets, signatures, and the checked mode."""

import contextlib
import ctypes
import platform
import re
import struct
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from lily import _core
from lily.errors import DeviceError
from tests.kernels.harness import NANO

SIZES = NANO | {"hidden_size": 256}
ROWS = 64
ARGS = struct.pack("<I", ROWS)


def norm_buffers():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((ROWS, SIZES["hidden_size"]), dtype=np.float32)
    gain = rng.standard_normal(SIZES["hidden_size"], dtype=np.float32)
    return x, gain, np.zeros_like(x)


@pytest.mark.parametrize("debug", ["", "baseline", "checked", "shuffled", "checked,shuffled"])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_runs_a_kernel_in_every_mode(debug, threads):
    device = _core.Device("cpu", sizes=SIZES, debug=f"threads={threads},{debug}")
    in_turn = "checked" in debug or "shuffled" in debug
    assert device.description.endswith(f", {1 if in_turn else threads} threads")
    x, gain, y = norm_buffers()
    device.run("rms_norm_f32", ARGS, [x, gain, y], (ROWS, 1, 1))
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * gain
    np.testing.assert_allclose(y, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="this machine is not slowed by numbers below the normal range"
)
@pytest.mark.parametrize("debug", ["", "checked", "shuffled"])
def test_results_below_the_normal_range_become_zero_and_only_in_kernels(debug):
    device = _core.Device("cpu", sizes=SIZES, debug=debug)
    x, gain, y = norm_buffers()
    gain[:] = np.float32(1e-40)  # below 2^-126 itself, and read as it is
    gain[0] = np.float32(1e-36)
    device.run("rms_norm_f32", ARGS, [x, gain, y], (ROWS, 1, 1))
    np.testing.assert_allclose(y[:, 0], x[:, 0] / np.sqrt((x.astype(np.float64) ** 2).mean(-1)) * 1e-36, rtol=1e-5)
    assert not y[:, 1:].any()
    assert (np.full(9, 1e-38, np.float32) * np.float32(0.01)).all()


@pytest.mark.skipif(sys.platform != "linux", reason="this machine has no C library of Linux, whose numbers these are")
@pytest.mark.parametrize("debug", ["", "checked", "shuffled"])
def test_the_callers_rounding_is_not_that_of_kernels_and_stays(debug):
    libm = ctypes.CDLL("libm.so.6")
    upward = {"x86_64": 0x800, "aarch64": 0x400000}[platform.machine()]
    device = _core.Device("cpu", sizes=SIZES, debug=f"threads=1,{debug}")
    x, gain, expected = norm_buffers()
    device.run("rms_norm_f32", ARGS, [x, gain, expected], (ROWS, 1, 1))
    y = np.zeros_like(expected)
    libm.fesetround(upward)
    try:
        device.run("rms_norm_f32", ARGS, [x, gain, y], (ROWS, 1, 1))
        with contextlib.suppress(DeviceError):  # the checked mode's
            device.run("rms_norm_f32", ARGS, [x, gain, x.copy()], (ROWS, 1, 1), [None, None, (0, 4)])
        after = libm.fegetround()
    finally:
        libm.fesetround(0)
    np.testing.assert_array_equal(y, expected)
    assert after == upward


def test_checked_mode_names_kernel_and_buffer_of_an_undeclared_write():
    device = _core.Device("cpu", sizes=SIZES, debug="checked")
    x, gain, y = norm_buffers()
    half = y.nbytes // 2
    with pytest.raises(DeviceError, match=r"rms_norm_f32 touched buffer argument 2") as caught:
        device.run("rms_norm_f32", ARGS, [x, gain, y], (ROWS, 1, 1), [None, None, (0, half)])
    assert (caught.value.kernel, caught.value.code) == ("rms_norm_f32", "undeclared_access")
    device.run("rms_norm_f32", ARGS, [x, gain, y], (ROWS, 1, 1))  # the device survives
    assert np.isfinite(y).all() and y[-1].any()


def test_checked_mode_finds_a_read_past_the_end():
    device = _core.Device("cpu", sizes=SIZES, debug="checked")
    x, gain, y = norm_buffers()
    with pytest.raises(DeviceError, match="rms_norm_f32 touched buffer argument 0"):
        device.run("rms_norm_f32", ARGS, [x[:-1], gain, y], (ROWS, 1, 1))


def test_checked_mode_closes_buffers_of_other_dispatches_for_writing():
    device = _core.Device("cpu", sizes=SIZES, debug="checked")
    x, gain, y = norm_buffers()
    with pytest.raises(DeviceError, match="rms_norm_f32 touched buffer argument 0"):
        # The declared part of x ends after its first page.
        device.run("rms_norm_f32", ARGS, [x, gain, y], (ROWS, 1, 1), [(0, 4096), None, None])


def test_errors_say_what_is_wrong():
    with pytest.raises(DeviceError, match=r'"opencl" is not available'):
        _core.Device("opencl", sizes=SIZES)
    for word in ("fast", "threads", "threads=", "threads=0", "threads=2x", "threads=-1", "threads=4294967296"):
        message = f'unknown debug switch "{word}".*known here: checked, shuffled, threads=N, '
        with pytest.raises(DeviceError, match=message):
            _core.Device("cpu", sizes=SIZES, debug=f"checked,{word}")
    with pytest.raises(ValueError, match='missing model size "head_dim"'):
        _core.Device("cpu", sizes={k: v for k, v in SIZES.items() if k != "head_dim"})
    device = _core.Device("cpu", sizes=SIZES)
    x, gain, y = norm_buffers()
    with pytest.raises(DeviceError, match="has no kernel rms_norm_q4"):
        device.run("rms_norm_q4", ARGS, [x, gain, y], (ROWS, 1, 1))
    with pytest.raises(ValueError, match="binds 3 ranges, got 2"):
        device.run("rms_norm_f32", ARGS, [x, gain], (ROWS, 1, 1))
    with pytest.raises(ValueError, match="takes 4 bytes of arguments, got 8"):
        device.run("rms_norm_f32", ARGS * 2, [x, gain, y], (ROWS, 1, 1))
    with pytest.raises(ValueError, match="outside of its length"):
        device.run("rms_norm_f32", ARGS, [x, gain, y], (ROWS, 1, 1), [None, None, (4, y.nbytes)])
    with pytest.raises(DeviceError, match="a level has 16777217 tiles; the cpu device takes at most 16777216"):
        device.run("rms_norm_f32", ARGS, [x, gain, y], (8 << 24 | 1, 1, 1))


@pytest.mark.skipif(sys.platform != "linux", reason="this machine has no limit of the address space for threads")
def test_a_refused_thread_is_an_error_and_those_made_end():
    script = """
        import resource
        from lily import _core
        from lily.errors import DeviceError
        from tests.kernels.harness import NANO

        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_STACK, (8 << 20, 8 << 20))
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))
        try:
            _core.Device("cpu", sizes=NANO, debug="threads=64")
        except DeviceError as error:
            print(error.code, error)
        _core.Device("cpu", sizes=NANO, debug="threads=2")
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"threads the system refuses thread \d+ of 64 \(.+\); .+ LILY_CPU_DEBUG=threads=\d+\n", done.stdout
    )
