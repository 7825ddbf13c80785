"""Sizes of memory: as people write them, and as the machine has them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

# The rest is for the system, other programs and what Python itself needs.
DEFAULT_MEMORY_FRACTION: Final = 0.8

MAX_BYTES: Final = 1 << 60  # more than any machine has; sums of several sizes stay within 64 bits

_UNITS: Final = {"B": 1} | {
    f"{letter}{suffix}": base ** (n + 1)
    for n, letter in enumerate("KMGT")
    for suffix, base in (("B", 1000), ("iB", 1024))
}


def parse_bytes(size: int | str, *, least: int = 1) -> int:
    """Bytes of 24_000_000_000, "24GiB", "24.5 GB".

    Raises ValueError for an unknown unit, for less than `least`, and for more than MAX_BYTES, which no machine has.
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(f"a memory size must be an int of bytes or text like '24GiB', not {type(size).__name__}")
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", size)
        unit = {name.lower(): value for name, value in _UNITS.items()}.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise ValueError(f"{size!r} is not a memory size; write a number and one of {', '.join(_UNITS)}: '24GiB'")
        num_bytes = float(match[1]) * unit
    else:
        num_bytes = size
    if not least <= num_bytes <= MAX_BYTES:
        raise ValueError(
            f"a memory size must be at least {format_bytes(least)} and at most {format_bytes(MAX_BYTES)}, not {size!r}"
        )
    return int(num_bytes)


def format_bytes(num_bytes: int) -> str:
    """Bytes for people, in binary units with two decimals."""
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"


def available_bytes() -> int:
    """Memory that new work can use now: what the system reports as available, within the container's limit.

    On macOS all physical memory, since the system hands out file cache and inactive pages without saying how much.
    """
    if sys.platform == "darwin":
        return int(subprocess.run(["sysctl", "-n", "hw.memsize"], capture_output=True, check=True, text=True).stdout)
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists() and (match := re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())):
        available = int(match[1]) * 1024
    room = _cgroup_room()
    return available if room is None else min(available, room)


def total_bytes() -> int:
    """Physical memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def default_limit() -> int:
    """The budget of an engine that was given none: a fraction of what is available."""
    return int(available_bytes() * DEFAULT_MEMORY_FRACTION)


def _cgroup_room() -> int | None:
    """Bytes that the container may still use, file cache counted as free; None without a limit."""
    for folder, limit_name, used_name, cache_name in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
    ):
        try:
            limit = (Path(folder) / limit_name).read_text().strip()
            used = int((Path(folder) / used_name).read_text())
            cache = re.search(rf"^{cache_name} (\d+)$", (Path(folder) / "memory.stat").read_text(), re.MULTILINE)
        except (OSError, ValueError):
            continue
        if limit == "max":
            return None
        return max(int(limit) - used + (int(cache[1]) if cache else 0), 0)
    return None
