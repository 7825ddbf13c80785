"""What a record says about the machine, and how busy it is."""

import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


def describe() -> dict[str, object]:
    """Everything that identifies the machine: processor, memory, kernel, Python and compiler."""
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "compiler": compiler(),
    }


def usable_cores(topology: str = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list") -> int:
    """Physical cores that this process may use: hyper-threads of one core count once, where the system tells."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    files = {processor: Path(topology.format(processor)) for processor in os.sched_getaffinity(0)}
    return len({file.read_text() if file.exists() else str(processor) for processor, file in files.items()})


def cpu_model() -> str:
    """The processor's name for people; its architecture where the system does not tell."""
    if sys.platform == "darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def compiler() -> str | None:
    """First line of the C++ compiler's version; None on a machine that has none."""
    path = shutil.which(os.environ.get("CXX", "c++"))
    if path is None:
        return None
    return subprocess.run([path, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]


def slug() -> str:
    """Short name of the machine for file names: processor and number of cores."""
    name = re.sub(r"\((r|tm)\)|\bcpu\b|\bprocessor\b|@.*", " ", cpu_model().lower())
    return "-".join([*re.findall(r"[a-z0-9]+", name), f"{os.cpu_count()}c"])


@dataclass(frozen=True)
class CpuClock:
    """A reading of how long processors worked, in seconds since start: the whole machine, and our finished children."""

    machine_seconds: float
    steal_seconds: float  # taken by other guests of the host; not part of machine_seconds
    children_seconds: float

    @staticmethod
    def read() -> "CpuClock":
        """Raises OSError on a system without /proc/stat: there the runner cannot tell whether the machine is quiet."""
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
        tick = 1 / os.sysconf("SC_CLK_TCK")
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return CpuClock(
            machine_seconds=(user + nice + system + irq + softirq) * tick,
            steal_seconds=steal * tick,
            children_seconds=children.ru_utime + children.ru_stime,
        )

    def foreign_seconds_since(self, earlier: "CpuClock") -> float:
        """Processor time used since `earlier` by anything but our children, other guests of the host included."""
        machine = self.machine_seconds - earlier.machine_seconds + self.steal_seconds - earlier.steal_seconds
        return max(0.0, machine - (self.children_seconds - earlier.children_seconds))


def evict(paths: Iterable[Path]) -> None:
    """Ask the system to forget what it holds of these files, so that whoever needs them next reads the disk."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
