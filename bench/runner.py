"""The one bench runner. It fails closed: no record without a quiet machine, a clean checkout and equal outputs.

An arm is a command that prints one JSON object on its last line of standard output:
{"digest": "of everything it computed", "metrics": {"decode_tokens_per_second": 123.4}}. It warms up at its exact shapes
by itself. Each arm runs in a fresh process in each round; the order alternates (A B, B A, A B), so that a drift of the
machine meets every arm alike.
"""

import hashlib
import importlib.util
import json
import math
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import machine

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "bench" / "records"
ABSOLUTE_PATH = re.compile(r"(?<![\w.~/:-])/(?:[^\s/'\"]+/)+[^\s/'\"]*")
BUILT_FROM = ("CMakeLists.txt", "cmake", "src", "shaders")


class BenchError(Exception):
    """A benchmark that must not become a record."""


class BusyMachineError(BenchError):
    """Something else uses the processors."""


class DirtyCheckoutError(BenchError):
    """The code that would be measured is not the code of a commit."""


class ArmError(BenchError):
    """An arm failed, or did not print what an arm has to print."""


class DigestError(BenchError):
    """An arm computed different things in different rounds."""


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: a name, unique in its bench, and a command line."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """What one run of an arm printed."""

    digest: str
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Limits:
    """When the machine counts as quiet, in processors that others may use on average, and for how long to look."""

    idle_cpus: float = 0.10  # in `window_seconds` before each round
    running_cpus: float = 0.10  # while an arm runs
    window_seconds: float = 2.0
    arm_seconds: float = 3600.0  # an arm that takes longer has failed


Clock = Callable[[], machine.CpuClock]


def run(
    bench: str,
    arms: Sequence[Arm],
    *,
    command: Sequence[str],
    inputs: Mapping[str, str],
    rounds: int = 3,
    prepare: Callable[[], None] = lambda: None,
    limits: Limits = Limits(),
    root: Path = ROOT,
    clock: Clock = machine.CpuClock.read,
) -> dict[str, Any]:
    """Run all arms in `rounds` alternating rounds and return the record.

    command: the command line that repeats this, for the reader of the record. inputs: a digest by name of all that the
    arms read. prepare: called before the first round. Raises a BenchError, and measures nothing more, at the first
    thing that is not as it must be.
    """
    names = [arm.name for arm in arms]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"arms need different names and at least one arm: {names}")
    if rounds < 2:
        raise ValueError(f"{rounds} rounds: at least 2 are needed to see whether an arm repeats itself")
    code = describe_code(root)
    prepare()
    results: dict[str, list[Result]] = {name: [] for name in names}
    for index in range(rounds):
        require_quiet_machine(limits, clock)
        for arm in arms if index % 2 == 0 else reversed(arms):
            result = run_arm(arm, root, limits, clock)
            first = results[arm.name][0] if results[arm.name] else result
            if result.digest != first.digest:
                raise DigestError(
                    f"arm {arm.name}: digest {result.digest} in round {index + 1}, {first.digest} in round 1: "
                    "it does not compute the same thing twice, so its times cannot be compared"
                )
            if result.metrics.keys() != first.metrics.keys():
                raise ArmError(f"arm {arm.name}: other metrics in round {index + 1} than in round 1")
            results[arm.name].append(result)
    if describe_code(root) != code:
        raise DirtyCheckoutError("the checkout or the extension changed while the bench ran: run it again")
    return {
        "bench": bench,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": shlex.join(portable(command)),
        "machine": machine.describe(),
        "code": code,
        "inputs": dict(inputs),
        "rounds": rounds,
        "limits": vars(limits),
        "arms": {
            arm.name: {
                "command": shlex.join(portable(arm.command)),
                "digest": results[arm.name][0].digest,
                "metrics": summarise(results[arm.name]),
            }
            for arm in arms
        },
    }


def run_arm(arm: Arm, root: Path, limits: Limits, clock: Clock) -> Result:
    """Run one arm in a process of its own; what others do meanwhile counts against the record."""
    before, start = clock(), time.perf_counter()
    try:
        done = subprocess.run(arm.command, cwd=root, capture_output=True, text=True, timeout=limits.arm_seconds)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ArmError(f"arm {arm.name}: {error}") from error
    seconds, after = time.perf_counter() - start, clock()
    if done.returncode != 0:
        raise ArmError(f"arm {arm.name}: exit status {done.returncode}: {done.stderr.strip()[-2000:]}")
    result = parse_result(arm, done.stdout)
    # The kernel counts in ticks of 10 ms: a short run must not fail on the rounding of a few of them.
    foreign = after.foreign_seconds_since(before)
    if foreign > limits.running_cpus * seconds + 0.1:
        raise BusyMachineError(
            f"others used {foreign:.2f} s of processor time while arm {arm.name} ran for {seconds:.2f} s, "
            f"allowed are {limits.running_cpus:.2f} processors: stop other work and run the bench again"
        )
    return result


def parse_result(arm: Arm, output: str) -> Result:
    """The JSON object on the last line of an arm's output."""
    lines = output.strip().splitlines()
    last = lines[-1] if lines else ""
    try:
        value = json.loads(last)
        digest, metrics = value["digest"], value["metrics"]
        sound = isinstance(digest, str) and digest and metrics
        sound = sound and all(type(number) in (int, float) and math.isfinite(number) for number in metrics.values())
    except (ValueError, TypeError, KeyError, AttributeError):
        sound = False
    if not sound:
        raise ArmError(
            f'arm {arm.name}: the last line must be {{"digest": "…", "metrics": {{name: finite number}}}}, not {last!r}'
        )
    return Result(digest, metrics)


def portable(command: Sequence[str]) -> list[str]:
    """A command line for a record: this interpreter is `python`, and absolute paths keep their last part only."""
    words = ["python" if word == sys.executable else word for word in command]
    return [ABSOLUTE_PATH.sub(lambda match: Path(match[0]).name, word) for word in words]


def summarise(results: Sequence[Result]) -> dict[str, dict[str, object]]:
    """Median, extremes and all values of each metric, in the order of the rounds."""
    summary: dict[str, dict[str, object]] = {}
    for name in results[0].metrics:
        values = [result.metrics[name] for result in results]
        summary[name] = {"median": statistics.median(values), "min": min(values), "max": max(values), "values": values}
    return summary


def require_quiet_machine(limits: Limits, clock: Clock) -> None:
    """Look at the machine for a moment while none of our arms runs."""
    try:
        before, start = clock(), time.perf_counter()
        time.sleep(limits.window_seconds)
        used, seconds = clock().foreign_seconds_since(before), time.perf_counter() - start
    except OSError as error:
        raise BusyMachineError(f"cannot tell whether this machine is quiet ({error}): records need Linux") from error
    if used > limits.idle_cpus * seconds:
        raise BusyMachineError(
            f"others use {used / seconds:.2f} processors, allowed are {limits.idle_cpus:.2f}: "
            "stop other work and run the bench again"
        )


def describe_code(root: Path) -> dict[str, object]:
    """Commit of the checkout and digest of the extension; DirtyCheckoutError unless they belong together.

    Records of other benches may lie around uncommitted: they change nothing that is measured.
    """
    status = git(root, "status", "--porcelain", "--", ".", ":(exclude)bench/records")
    if status:
        raise DirtyCheckoutError(f"the checkout has changes: commit them, then run the bench again\n{status}")
    extension = find_extension()
    if extension is not None:
        built = extension.stat().st_mtime
        sources = [path for part in BUILT_FROM for path in [root / part, *(root / part).rglob("*")] if path.is_file()]
        newer = [str(path.relative_to(root)) for path in sources if path.stat().st_mtime > built]
        if newer:
            raise DirtyCheckoutError(f"{newer[0]} is newer than the extension {extension}: run 'make setup'")
    return {
        "commit": git(root, "rev-parse", "HEAD"),
        "extension": extension.name if extension else None,
        "extension_sha256": digest_file(extension) if extension else None,
    }


def find_extension() -> Path | None:
    """The extension that `import lily` would load here; None when lily is not installed."""
    if importlib.util.find_spec("lily") is None:
        return None
    spec = importlib.util.find_spec("lily._core")
    return Path(spec.origin) if spec and spec.origin else None


def git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise DirtyCheckoutError(f"{root} is no git checkout, so its code cannot be named: {error}") from error
    return done.stdout.strip()


def digest_file(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_folder(folder: Path) -> str:
    """SHA-256 over names and contents of the files of a checkpoint folder, in hexadecimal."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    if not files:
        raise FileNotFoundError(f"{folder} holds no files")
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path.name}\0{digest_file(path)}\n".encode())
    return total.hexdigest()


def write_record(record: Mapping[str, Any], folder: Path = RECORDS) -> Path:
    """Write `record` as <bench>-<machine>-<date>.json; a second run on one day replaces the first."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record['bench']}-{machine.slug()}-{record['date']}.json"
    path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    return path
