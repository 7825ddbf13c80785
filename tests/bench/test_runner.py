"""The bench runner refuses everything that must not become a record."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import machine, runner
from bench.runner import Arm, ArmError, BusyMachineError, DigestError, DirtyCheckoutError, Limits

LIMITS = Limits(window_seconds=0.0)


def quiet() -> machine.CpuClock:
    return machine.CpuClock(machine_seconds=0.0, steal_seconds=0.0, children_seconds=0.0)


class Busy:
    """A clock of a machine on which others work: `seconds` more at each reading from the `first` one on."""

    def __init__(self, seconds: float, first: int = 0) -> None:
        self.seconds = seconds
        self.first = first
        self.readings = 0

    def __call__(self) -> machine.CpuClock:
        self.readings += 1
        used = max(0, self.readings - self.first) * self.seconds
        return machine.CpuClock(machine_seconds=used, steal_seconds=0.0, children_seconds=0.0)


def arm(name: str, *, digest: str = "same", speed: float = 5.0, code: str = "") -> Arm:
    script = f"print('noise'); {code or 'pass'}; print('{json.dumps({'digest': digest, 'metrics': {'speed': speed}})}')"
    return Arm(name, (sys.executable, "-S", "-c", script))


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runner, "find_extension", lambda: None)
    root = tmp_path / "checkout"
    (root / "src").mkdir(parents=True)
    (root / "src" / "file.cpp").write_text("// one\n")
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    for command in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-qm", "One"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


def run(root: Path, arms: Sequence[Arm], *, rounds: int = 2, clock: runner.Clock = quiet) -> dict[str, Any]:
    return runner.run("x", arms, command=["x"], inputs={"m": "0"}, rounds=rounds, limits=LIMITS, root=root, clock=clock)


def test_order_alternates_and_every_round_is_a_fresh_process(checkout: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = f"import os; print({{!r}}, os.getpid(), file=open({str(log)!r}, 'a'))"
    record = run(checkout, [arm("A", code=code.format("A")), arm("B", code=code.format("B"))], rounds=3)
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [name for name, _ in lines] == ["A", "B", "B", "A", "A", "B"]
    assert len({pid for _, pid in lines}) == 6
    assert list(record["arms"]) == ["A", "B"]


def test_record_holds_the_median_and_names_machine_code_and_inputs(checkout: Path, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("")
    code = f"p={str(counter)!r}; open(p, 'a').write('x'); n=len(open(p).read())"
    script = f'{code}; print(\'{{"digest": "d", "metrics": {{"speed": %d}}}}\' % (n * n))'
    record = run(checkout, [Arm("A", (sys.executable, "-S", "-c", script))], rounds=3)
    assert record["arms"]["A"]["metrics"]["speed"] == {"median": 4, "min": 1, "max": 9, "values": [1, 4, 9]}
    assert record["code"]["commit"] == runner.git(checkout, "rev-parse", "HEAD")
    assert record["inputs"] == {"m": "0"}
    assert set(record["machine"]) >= {"cpu", "cores", "memory_bytes", "system", "python", "compiler"}
    path = runner.write_record(record, tmp_path / "records")
    assert path.name == f"x-{machine.slug()}-{record['date']}.json"
    assert json.loads(path.read_text()) == json.loads(json.dumps(record))


def test_a_busy_machine_is_refused_before_an_arm_runs(checkout: Path, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    with pytest.raises(BusyMachineError, match=r"others use .* allowed are 0\.10"):
        run(checkout, [arm("A", code=f"open({str(touched)!r}, 'w')")], clock=Busy(5.0))
    assert not touched.exists()


def test_a_machine_that_gets_busy_during_an_arm_is_refused(checkout: Path) -> None:
    with pytest.raises(BusyMachineError, match="while arm A ran"):
        run(checkout, [arm("A")], clock=Busy(60.0, first=3))


def test_time_of_our_own_children_is_not_foreign() -> None:
    before = machine.CpuClock(machine_seconds=10.0, steal_seconds=1.0, children_seconds=4.0)
    after = machine.CpuClock(machine_seconds=15.0, steal_seconds=1.5, children_seconds=8.0)
    assert after.foreign_seconds_since(before) == pytest.approx(1.5)


def test_a_system_that_cannot_be_read_is_refused(checkout: Path) -> None:
    def unreadable() -> machine.CpuClock:
        raise FileNotFoundError("/proc/stat")

    with pytest.raises(BusyMachineError, match="cannot tell"):
        run(checkout, [arm("A")], clock=unreadable)


@pytest.mark.skipif(sys.platform != "linux", reason="this machine has no /proc/stat")
def test_the_real_clock_sees_work() -> None:
    before = machine.CpuClock.read()
    subprocess.run([sys.executable, "-S", "-c", "import time\nwhile time.process_time() < 0.2: pass"], check=True)
    after = machine.CpuClock.read()
    assert after.children_seconds - before.children_seconds >= 0.19
    seconds = after.machine_seconds - before.machine_seconds
    assert seconds + after.steal_seconds - before.steal_seconds >= 0.1  # of a guest, some of what it believes to use


@pytest.mark.parametrize("name", ["src/file.cpp", "untracked.txt"])
def test_a_dirty_checkout_is_refused(checkout: Path, name: str) -> None:
    (checkout / name).write_text("// two\n")
    with pytest.raises(DirtyCheckoutError, match=name):
        run(checkout, [arm("A")])


def test_uncommitted_records_do_not_make_a_checkout_dirty(checkout: Path) -> None:
    (checkout / "bench" / "records").mkdir(parents=True)
    (checkout / "bench" / "records" / "old.json").write_text("{}")
    assert run(checkout, [arm("A")])["rounds"] == 2


def test_an_extension_older_than_its_sources_is_refused(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extension = tmp_path / "_core.so"
    extension.write_bytes(b"")
    monkeypatch.setattr(runner, "find_extension", lambda: extension)
    os.utime(extension, (1, 1))
    with pytest.raises(DirtyCheckoutError, match="make setup"):
        run(checkout, [arm("A")])


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DirtyCheckoutError, match="no git checkout"):
        run(tmp_path, [arm("A")])


def test_a_change_during_the_bench_is_refused(checkout: Path) -> None:
    with pytest.raises(DirtyCheckoutError, match=r"new\.txt"):
        run(checkout, [arm("A", code="open('new.txt', 'w')")])


def test_digests_that_differ_between_rounds_are_refused(checkout: Path) -> None:
    script = 'import os; print(\'{"digest": "%d", "metrics": {"speed": 1}}\' % os.getpid())'
    with pytest.raises(DigestError, match="arm A"):
        run(checkout, [Arm("A", (sys.executable, "-S", "-c", script))])


def test_different_arms_may_compute_different_things(checkout: Path) -> None:
    record = run(checkout, [arm("A", digest="a"), arm("B", digest="b")])
    assert record["arms"]["A"]["digest"] == "a"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import sys; sys.exit('out of memory')", "exit status 1: out of memory"),
        ("pass", "last line"),
        ("print('done')", "last line"),
        ('print(\'{"metrics": {"speed": 1}}\')', "last line"),
        ('print(\'{"digest": "d", "metrics": {}}\')', "last line"),
        ('print(\'{"digest": "d", "metrics": {"speed": NaN}}\')', "last line"),
        ('print(\'{"digest": "d", "metrics": {"speed": true}}\')', "last line"),
        ('print(\'{"digest": "d", "metrics": {"speed": 1}}\'); print(\'bye\')', "last line"),
    ],
)
def test_an_arm_that_fails_or_prints_no_result_is_refused(checkout: Path, script: str, words: str) -> None:
    with pytest.raises(ArmError, match=words):
        run(checkout, [Arm("A", (sys.executable, "-S", "-c", script))])


def test_an_arm_that_does_not_exist_or_hangs_is_refused(checkout: Path) -> None:
    with pytest.raises(ArmError, match="no-such-program"):
        run(checkout, [Arm("A", ("no-such-program",))])
    with pytest.raises(ArmError, match="timed out"):
        runner.run_arm(Arm("A", tuple(shlex.split("sleep 600"))), checkout, Limits(arm_seconds=0.1), quiet)


@pytest.mark.parametrize(("arms", "rounds"), [([], 2), ([arm("A"), arm("A")], 2), ([arm("A")], 1)])
def test_a_bench_that_compares_nothing_is_refused(checkout: Path, arms: list[Arm], rounds: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        run(checkout, arms, rounds=rounds)


def test_a_record_holds_no_absolute_path(checkout: Path, tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text(arm("A").command[-1])
    command = (sys.executable, "-S", str(script), "--folder", "/models/one", "--url=http://127.0.0.1:80/v1", "--x=/a/b")
    record = runner.run(
        "x", [Arm("A", command)], command=command, inputs={"m": "0"}, limits=LIMITS, root=checkout, clock=quiet
    )
    expected = "python -S peer.py --folder one --url=http://127.0.0.1:80/v1 --x=b"
    assert record["command"] == record["arms"]["A"]["command"] == expected
    assert not runner.ABSOLUTE_PATH.search(json.dumps(record))


def test_no_committed_record_holds_an_absolute_path() -> None:
    found = {path.name: runner.ABSOLUTE_PATH.findall(path.read_text()) for path in runner.RECORDS.glob("*.json")}
    assert {name: paths for name, paths in found.items() if paths} == {}
