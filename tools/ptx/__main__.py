"""The shaders on an NVIDIA GPU: every kernel test of tests/kernels, with NumPy's references, on PTX.

    python -m tools.ptx build FOLDER               where lily is built: compiles what the tests run
    python -m tools.ptx run FOLDER [--record]      where the GPU is: needs its driver, NumPy, pytest and hypothesis

`run` prints a record as JSON: the machine, and for both forms of the matrix products (simdgroup matrices, tensor
operations) how many tests passed, what failed, which kernels ran and the registers and bytes that each needs at most.
Its exit status is 1 unless all tests passed and every kernel was run.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import machine
from tools.msl.grid import find_grid, grids
from tools.msl.preamble import FORMS, kernel_defines

from .cuda import CudaError, Gpu
from .folder import PtxFolder
from .kernel_tests import FILES, ROOT, run_tests

ABOUT = "about.json"
TIMEOUT_SECONDS = 540
Wanted = tuple[str, tuple[tuple[str, int], ...], float]  # a kernel, the model's sizes, its epsilon


def build(folder: PtxFolder, jobs: int) -> int:
    """Runs the tests on the CPU's kernels to see what they need, and compiles that in both forms."""
    from lily import _core
    from lily.selftest.precision import halves_of

    wanted: set[Wanted] = set()
    device = _core.Device

    class Recorder:
        """The CPU in the place of the Metal device, noting what it runs."""

        def __init__(self, name: str, *, sizes: Mapping[str, int], rms_norm_eps: float = 1e-6, **_: Any) -> None:
            self._device = device("cpu", sizes=sizes, rms_norm_eps=rms_norm_eps, debug=f"threads={jobs}")
            self._model = tuple(sorted(sizes.items())), rms_norm_eps

        def run(self, kernel: str, args: bytes, buffers: Sequence[NDArray[Any]], extent: tuple[int, int, int]) -> None:
            wanted.add((kernel, *self._model))
            halves = halves_of(kernel, "f16")
            wide = [values.astype(np.float32) if i in halves else values for i, values in enumerate(buffers)]
            self._device.run(kernel.replace("_f16", "_f32"), args, wide, extent)
            for i in halves:
                buffers[i][...] = wide[i]

    _core.Device = Recorder  # type: ignore[misc, assignment]
    known = -1
    seed = 0
    while len(wanted) > known:  # property tests draw sizes: until they ask for nothing new
        known = len(wanted)
        outcomes = run_tests(FILES, seed)
        if outcomes.failures:
            print("tests fail on the CPU, too:", json.dumps(outcomes.failures, indent=2), file=sys.stderr)
            return 1
        seed += 1

    def add(task: tuple[Wanted, str]) -> None:
        (kernel, sizes, eps), form = task
        folder.add(find_grid(kernel).shader, kernel_defines(kernel, dict(sizes), eps, form))

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(add, product(sorted(wanted), FORMS)))
    git = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    commit = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    files = list(folder.path.glob("*.gz"))
    (folder.path / ABOUT).write_text(json.dumps({"commit": commit}) + "\n", encoding="utf-8")
    print(f"{len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB")
    return 0


def run(folder: PtxFolder, jobs: int) -> dict[str, Any]:
    """The record. Raises CudaError where there is no GPU."""
    gpu = Gpu()
    with tempfile.TemporaryDirectory() as results, ThreadPoolExecutor(jobs) as pool:

        def session(form: str, file: Path) -> dict[str, Any]:
            out = Path(results) / f"{form}-{file.stem}.json"
            command = [sys.executable, "-m", "tools.ptx.session", str(folder.path), form, str(file), str(out)]
            try:
                done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
                text = done.stdout + done.stderr
            except subprocess.TimeoutExpired as error:
                text = str(error)
            if out.exists():
                return dict(json.loads(out.read_text(encoding="utf-8")))
            return {"failures": {file.name: text[-1000:]}}

        sessions = {form: [pool.submit(session, form, file) for file in FILES] for form in FORMS}
        done = {form: [one.result() for one in futures] for form, futures in sessions.items()}
    return {
        "bench": "shaders-as-ptx",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": "python -m tools.ptx run FOLDER --record",
        "machine": {
            **machine.describe(),
            **{"gpu": gpu.name, "capability": ".".join(map(str, gpu.capability)), "driver": gpu.driver},
        },
        "code": json.loads((folder.path / ABOUT).read_text(encoding="utf-8")),
        "arms": {form: summary(ones) for form, ones in done.items()},
    }


def summary(sessions: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Of all files of tests in one form."""
    passed, skipped = 0, 0
    failures: dict[str, str] = {}
    ran: set[str] = set()
    needs: dict[str, dict[str, int]] = {}  # by function: of all sizes and formats the most
    for one in sessions:
        passed, skipped = passed + one.get("passed", 0), skipped + one.get("skipped", 0)
        failures |= one["failures"]
        for kernel, values in one.get("kernels", {}).items():
            ran.add(kernel)
            most = needs.setdefault(find_grid(kernel).function, values)
            needs[find_grid(kernel).function] = {what: max(most[what], value) for what, value in values.items()}
    kernels = {name for grid in grids() for name in grid.kernel_names()}
    return {
        "metrics": {"passed": passed, "failed": len(failures), "skipped": skipped, "kernels": len(ran)},
        "kernels_not_run": sorted(kernels - ran),
        "failures": failures,
        "functions": dict(sorted(needs.items())),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.ptx", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of the PTX files")
    parser.add_argument("--record", nargs="?", type=Path, const=ROOT / "bench/records", metavar="RECORDS",
                        help="of run: write the record into this folder (default: bench/records)")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")
    options = parser.parse_args()
    folder = PtxFolder(options.folder.resolve())
    if options.command == "build":
        return build(folder, options.jobs)
    try:
        record = run(folder, options.jobs)
    except (CudaError, FileNotFoundError) as error:
        raise SystemExit(f"error: {error}") from error
    text = json.dumps(record, indent=2)
    print(text)
    if options.record:
        options.record.mkdir(parents=True, exist_ok=True)
        gpu = "-".join(re.findall(r"[a-z0-9]+", record["machine"]["gpu"].lower()))
        (options.record / f"{record['bench']}-{gpu}-{record['date']}.json").write_text(text + "\n", encoding="utf-8")
    arms = record["arms"].values()
    faults = sum(len(arm["failures"]) + len(arm["kernels_not_run"]) for arm in arms)
    return 1 if faults or not all(arm["metrics"]["passed"] for arm in arms) else 0


if __name__ == "__main__":
    sys.exit(main())
