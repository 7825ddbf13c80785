"""How many threads the CPU device takes: no more than a container's quota of processor time is worth."""

import re
import subprocess
import sys

import pytest

from tests.kernels.harness import NANO

DEVICE = f"from lily import _core; print(_core.Device('cpu', sizes={NANO}).description)"


def threads_with(files):
    """Threads of a device over other cgroups: `files` lie over the real ones, for the child alone."""
    folder = "/sys/fs/cgroup"
    mount = f"mount -t tmpfs none {folder} && mkdir {folder}/cpu"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this machine lets nobody here mount a folder")
    write = "".join(f" && echo {text} > {folder}/{name}" for name, text in files.items())
    command = ["unshare", "-m", "sh", "-c", f'{mount}{write} && exec "$0" -c "$1"', sys.executable, DEVICE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(re.search(r"(\d+) threads", done.stdout)[1])


@pytest.mark.skipif(sys.platform != "linux", reason="cgroups are Linux's")
@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({"cpu.max": "150000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "100000000 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_a_quota_of_processor_time_bounds_the_threads(files, threads):
    """None: as many as without a quota."""
    assert threads_with(files) == (threads or threads_with({}))
