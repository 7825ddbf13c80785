"""Which NUMA node each thread of the CPU device keeps to, on machines that are folders."""

import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CXX", "c++")
SOURCES = (ROOT / "tests/native/nodes.cpp", ROOT / "src/lily_core/device/cpu/cores.cpp")

pytestmark = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="needs a C++ compiler")


@dataclass
class Machine:
    """Nodes by number, as Linux lists their processors, and processors that are one core."""

    online: str
    cpulists: dict[int, str]
    siblings: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        for node, text in self.cpulists.items():
            write(folder / f"node/node{node}/cpulist", text)
        write(folder / "node/online", self.online)
        for text in self.siblings:
            for processor in text.split(","):
                write(folder / f"cpu/cpu{processor}/topology/thread_siblings_list", text)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


ONE = Machine("0", {0: "0-7"})
TWO = Machine("0-1", {0: "0-3,8-11", 1: "4-7,12-15"})
TWO_OF_PAIRS = Machine("0-1", {0: "0-1,4-5", 1: "2-3,6-7"}, ("0,4", "1,5", "2,6", "3,7"))
UNEQUAL = Machine("0-1", {0: "0-5", 1: "6-7"})
# Nodes 1 and 3 are memory alone; there is no node 2.
WITH_MEMORY_NODES = Machine("0-1,3-4", {0: "0-1", 1: "", 3: "", 4: "2,3"})
ONE_AND_MEMORY = Machine("0-1", {0: "0-3", 1: ""})
FOUR = Machine("0-3", {0: "0-1", 1: "2-3", 2: "4-5", 3: "6-7"})
UNTOLD = Machine("", {})

A, B = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("nodes") / "nodes"
    command = [COMPILER, "-std=c++20", f"-I{ROOT}/src/lily_core", *SOURCES, "-o", program]
    subprocess.run(command, check=True)
    return program


def processors_of_threads(program: Path, folder: Path, threads: int, allowed: Iterable[int]) -> list[list[int]]:
    command = [program, folder, str(threads), *map(str, allowed)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [[int(word) for word in line.split()] for line in lines]


@pytest.mark.parametrize(
    ("machine", "allowed", "threads", "expected"),
    [
        pytest.param(ONE, range(8), 8, [], id="one node"),
        pytest.param(ONE_AND_MEMORY, range(4), 4, [], id="one node, and one of memory"),
        pytest.param(UNTOLD, range(8), 8, [], id="a system that does not tell"),
        pytest.param(TWO, range(16), 16, [(8, A), (8, B)], id="two equal nodes"),
        pytest.param(TWO, range(16), 5, [(3, A), (2, B)], id="fewer threads than cores"),
        pytest.param(TWO, range(16), 40, [(20, A), (20, B)], id="more threads than cores"),
        pytest.param(TWO, range(16), 1, [(1, A)], id="one thread"),
        pytest.param(TWO, B, 8, [], id="a mask that leaves one node"),
        pytest.param(TWO, [3, 4, 5, 12, 99], 4, [(1, [3]), (3, [4, 5, 12])], id="a mask that leaves parts of nodes"),
        pytest.param(TWO_OF_PAIRS, range(8), 4, [(2, [0, 1, 4, 5]), (2, [2, 3, 6, 7])], id="hyper-threads"),
        pytest.param(
            TWO_OF_PAIRS, [0, 1, 2, 6], 3, [(2, [0, 1]), (1, [2, 6])], id="hyper-threads of one core count once"
        ),
        pytest.param(UNEQUAL, range(8), 8, [(6, [*range(6)]), (2, [6, 7])], id="unequal nodes"),
        pytest.param(UNEQUAL, range(8), 4, [(3, [*range(6)]), (1, [6, 7])], id="unequal nodes, fewer threads"),
        pytest.param(WITH_MEMORY_NODES, range(4), 4, [(2, [0, 1]), (2, [2, 3])], id="nodes of memory between"),
        pytest.param(FOUR, range(8), 2, [(1, [0, 1]), (1, [4, 5])], id="fewer threads than nodes"),
        pytest.param(FOUR, range(2, 6), 4, [(2, [2, 3]), (2, [4, 5])], id="a mask that leaves two of four nodes"),
    ],
)
def test_threads_keep_to_nodes(
    program: Path,
    tmp_path: Path,
    machine: Machine,
    allowed: Iterable[int],
    threads: int,
    expected: list[tuple[int, list[int]]],
) -> None:
    """`expected`: how many threads in a row keep to which processors; nothing: none are bound."""
    machine.write(tmp_path)
    found = processors_of_threads(program, tmp_path, threads, allowed)
    assert [(len([*same]), processors) for processors, same in groupby(found)] == expected


@pytest.mark.parametrize(
    ("machine", "cores"), [(TWO, 16), (UNEQUAL, 8), (FOUR, 8)], ids=["two nodes", "unequal nodes", "four nodes"]
)
def test_every_number_of_threads_is_in_proportion(program: Path, tmp_path: Path, machine: Machine, cores: int) -> None:
    machine.write(tmp_path)
    for threads in range(1, 2 * cores):
        found = processors_of_threads(program, tmp_path, threads, range(cores))
        assert len(found) == threads
        assert found == sorted(found), "threads of a node are not neighbours"
        for node, same in groupby(found):
            assert abs(len([*same]) - threads * len(node) / cores) < 1
