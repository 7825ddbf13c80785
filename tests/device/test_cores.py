"""How many threads the CPU device takes, and the processors they keep to, where the system describes other machines."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.kernels.harness import NANO

DESCRIBE = f"from lily import _core; print(_core.Device('cpu', sizes={NANO}).description)"

# Processors of the calling thread, and of each thread that the device starts.
AFFINITIES = f"""
import json, os
from lily import _core
before = {{*os.listdir("/proc/self/task")}}
device = _core.Device("cpu", sizes={NANO}, debug="threads=4")
workers = sorted({{*os.listdir("/proc/self/task")}} - before, key=int)
print(json.dumps([sorted(os.sched_getaffinity(thread)) for thread in (0, *map(int, workers))]))
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="this machine has no cgroups of Linux and no such folders"
)


def run_over(folder, files, code):
    """What Python code prints while `files` lie over those of the folder, for it alone."""
    mount = f"mount -t tmpfs none {folder}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("this machine lets nobody here mount a folder")
    write = "".join(
        f" && mkdir -p {folder}/{os.path.dirname(name)} && echo {text} > {folder}/{name}"
        for name, text in files.items()
    )
    command = ["unshare", "-m", "sh", "-c", f'{mount}{write} && exec "$0" -c "$1"', sys.executable, code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def threads_with(files):
    return int(re.search(r"(\d+) threads", run_over("/sys/fs/cgroup", files, DESCRIBE))[1])


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


def affinities_with(files):
    return json.loads(run_over("/sys/devices/system/node", files, AFFINITIES))


def test_threads_keep_to_a_node():
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("this machine has one processor")
    first, *others = allowed
    found = affinities_with({"online": "0-1", "node0/cpulist": first, "node1/cpulist": ",".join(map(str, others))})
    caller, *workers = found
    assert caller == allowed
    assert len(workers) == 3
    assert workers[-1] == others
    assert all(worker in ([first], others) for worker in workers)


@pytest.mark.parametrize("online", [None, "0", "0-1"])
def test_threads_of_one_node_are_not_bound(online):
    """None: the system does not tell. The second node is one of memory alone."""
    allowed = sorted(os.sched_getaffinity(0))
    nodes = {"online": online, "node0/cpulist": ",".join(map(str, allowed)), "node1/cpulist": ""}
    assert affinities_with(nodes if online else {}) == [allowed] * 4
