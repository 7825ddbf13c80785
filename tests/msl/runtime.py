"""Runs kernels of a shader on the CPU: translator, clang and fibers, without a host."""

import ctypes
import hashlib
import mmap
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tools.msl.build import CACHE, Source, library

ROOT = Path(__file__).parents[2]
Array = NDArray[Any]
_FIBERS = [ROOT / "tests/softmetal" / name for name in ("fibers", "stacks", "caught_faults")]
_SOURCES = [*(stem.with_suffix(".cpp") for stem in _FIBERS), ROOT / "tests/msl/runner.cpp"]
_HEADERS = [*(stem.with_suffix(".h") for stem in _FIBERS), ROOT / "tools/msl/include/msl/runtime.h"]
_LIBC = ctypes.CDLL(None, use_errno=True)


class KernelFault(Exception):
    """What the runtime found wrong in a kernel."""


def _compile_runtime() -> Path:
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in (*_SOURCES, *_HEADERS))).hexdigest()[:32]
    path = CACHE / f"{digest}.fibers.so"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            built = Path(folder) / "fibers.so"
            compiler = os.environ.get("CXX", "c++")
            flags = ["-std=c++20", "-O2", "-fPIC", "-shared", f"-I{ROOT}"]
            subprocess.run([compiler, *flags, *map(str, _SOURCES), "-o", str(built)], check=True)
            os.replace(built, path)
    return path


@cache
def _runtime() -> ctypes.CDLL:
    ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)  # what shaders call
    loaded = ctypes.CDLL(str(_compile_runtime()))
    loaded.run_kernel.restype = ctypes.c_char_p
    return loaded


def guarded(values: Array) -> Array:
    """A copy whose end, rounded up to 16 bytes, is the end of the memory that may be touched."""
    size = (values.nbytes + 15) // 16 * 16
    pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if _LIBC.mprotect(ctypes.c_void_p(base + pages), ctypes.c_size_t(mmap.PAGESIZE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    copy = np.frombuffer(memory, values.dtype, values.size, pages - size).reshape(values.shape)
    copy[...] = values
    return copy


def run(
    source: str | Path, kernel: str, buffers: Sequence[Array], *, groups: Sequence[int] = (1, 1, 1),
    threads: Sequence[int] = (32, 1, 1), defines: Mapping[str, str] | None = None, reverse: bool = False,
    math: str = "safe",
) -> list[Array]:  # fmt: skip
    """Copies of the buffers after a dispatch of `groups` threadgroups of `threads` threads. Raises KernelFault."""
    shader = Source.read(source, defines) if isinstance(source, Path) else Source(source, "shader", defines or {})
    memory = [guarded(np.ascontiguousarray(b)) for b in buffers]
    dispatch(library(shader, math), kernel, [b.ctypes.data for b in memory], groups, threads, reverse)
    return memory


def dispatch(
    compiled: Path, kernel: str, addresses: Sequence[int], groups: Sequence[int], threads: Sequence[int],
    reverse: bool = False,
) -> None:  # fmt: skip
    """Runs a kernel of a compiled library on memory at these addresses. Raises KernelFault."""
    exports = ctypes.c_char.in_dll(ctypes.CDLL(str(compiled)), "msl_exports")
    size = ctypes.c_uint * 3
    fault = _runtime().run_kernel(
        ctypes.byref(exports), kernel.encode(), (ctypes.c_void_p * len(addresses))(*addresses), size(*groups),
        size(*threads), int(reverse),
    )  # fmt: skip
    if fault:
        raise KernelFault(fault.decode())


def counts() -> tuple[int, int, int]:
    """Parked threads, simdgroup operations and opened barriers so far."""
    out = (ctypes.c_ulong * 3)()
    _runtime().read_counts(out)
    return out[0], out[1], out[2]
