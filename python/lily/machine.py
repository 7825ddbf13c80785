"""The machine: its processor and memory, and how fast its cores read memory and multiply."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Final

import numpy as np

from . import _core
from .memory import available_bytes, total_bytes

PACKAGES: Final = ("numpy", "tokenizers", "safetensors", "jinja2")
_READ_BYTES: Final = 1 << 30  # far more than any cache holds
_READS: Final = 3


def describe_machine() -> dict[str, object]:
    """What a report of speeds or faults says about the machine."""
    return {
        "processor": processor(),
        "architecture": platform.machine(),
        "logical_processors": logical_processors(),
        "memory_bytes": total_bytes(),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Versions of lily, Python and the packages that lily needs."""
    return {
        "lily": version("lily"),
        "python": platform.python_version(),
        **{name: version(name) for name in PACKAGES},
    }


def processor() -> str:
    """The processor's name for people; its architecture where the system does not tell."""
    if sys.platform == "darwin":
        return sysctl("machdep.cpu.brand_string") or platform.machine()
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.machine()


def logical_processors() -> int:
    """Those that this process may use: a core has one, or two with hyper-threading."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def sysctl(name: str) -> str | None:
    """A value of macOS's sysctl; None if there is none."""
    done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def read_bytes_per_second(num_bytes: int = _READ_BYTES) -> float:
    """How fast all logical processors together read memory, each its own part: the best of a few passes.

    num_bytes: to read; less where less than four times as much is available.
    """
    threads = logical_processors()
    words = max(min(num_bytes, available_bytes() // 4) // 8 // threads, 1 << 10)
    parts = [np.ones(words, np.int64) for _ in range(threads)]  # written, so that every page exists
    fastest = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_READS):
            start = time.perf_counter()
            list(pool.map(np.max, parts))  # NumPy lets other threads run meanwhile
            fastest = max(fastest, 8 * words * threads / (time.perf_counter() - start))
    return fastest


def multiply_operations_per_second(dtype: str = "auto") -> float:
    """How fast the CPU device's threads together multiply and add, on registers alone: the best of a few passes.

    Operations, a multiplication and its addition being two, with the instructions by which the device multiplies
    matrices of `dtype`: "float16" (and "auto") 16-bit integers by exact codes, "float32" floats. A matrix product that
    multiplies one by one cannot be faster. Winograd's inner product, which makes two products of one multiplication,
    is all by which lily's may be: the set "avx512_pairs" uses it for codes of 4 bits. LILY_CPU_DEBUG chooses the
    instruction set, as it does for an engine. DeviceError for a word that it does not know, ValueError for a dtype.
    """
    return _core.multiply_rate(dtype, os.environ.get("LILY_CPU_DEBUG", ""))
