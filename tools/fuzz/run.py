"""Fuzz the readers of checkpoint files: replay a target's corpus, or search for new inputs with libFuzzer.

    python -m tools.fuzz.run safetensors --seconds 60
    python -m tools.fuzz.run header_json=4000000 safetensors=4000000 checkpoint=2000000 --record

`corpus/TARGET` holds inputs that together reach all code that was ever reached; a search starts there, with a process
for each core, and `--minimise` writes it anew. libFuzzer comes with clang (Debian: clang and libclang-rt-dev).

A search can run on a machine without a compiler, with a bare Python and a copy of `tools` and `bench`:

    python -m tools.fuzz.run --build FOLDER                         # here
    python3 -m tools.fuzz.run --built FOLDER safetensors=4000000    # there
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import machine, runner
from tools.fuzz import programs
from tools.fuzz.programs import FOLDER, TARGETS, FuzzError

MAX_LENGTH = 600  # bytes of an input: long enough for three tensors
TIMEOUT_SECONDS = 100  # of one input, by the clock on the wall: a process that was stopped for a while is no finding
CORPUS_BYTES = 150_000  # that a corpus may have in the repository


def execute(command: list[str]) -> str:
    """Run a target with its files on a file system in memory, if there is one; its output. Raises FuzzError."""
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env={**os.environ, "TMPDIR": in_memory}
    )
    if done.returncode:
        raise FuzzError(f"{shlex.join(command)}: exit status {done.returncode}\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout + done.stderr


def corpus(target: str) -> Path:
    return FOLDER / "corpus" / target


def replay(target: str) -> int:
    """Run a target on its corpus; the number of inputs."""
    output = execute([str(programs.build(target, for_search=False)), str(corpus(target))])
    return int(re.findall(r"^(\d+) inputs$", output, re.MULTILINE)[-1])


def search(target: str, program: Path, found: Path, *, seconds: int, runs: int, processes: int) -> dict[str, int]:
    """Search for inputs that end the target, in several processes; what was done, all of them together.

    seconds: of each process, 0 without a limit. runs: of all together, -1 without a limit. New inputs that reach new
    code are left in folders of `found`, one that ends the target in build/fuzz. Raises FuzzError then.
    """
    programs.BUILD.mkdir(parents=True, exist_ok=True)

    def process(index: int) -> tuple[int, int]:
        own = found / str(index)
        own.mkdir()
        options = [f"-max_len={MAX_LENGTH}", f"-dict={FOLDER / 'tokens.dict'}", f"-timeout={TIMEOUT_SECONDS}"]
        options += ["-rss_limit_mb=0"]
        options += [f"-max_total_time={seconds}", f"-runs={runs if runs < 0 else -(-runs // processes)}"]
        options += ["-print_final_stats=1", f"-artifact_prefix={programs.BUILD}/{target}-"]
        output = execute([str(program), *options, str(own), str(corpus(target))])
        reached = re.findall(r"cov: (\d+) ft: ", output)
        return int(re.findall(r"stat::number_of_executed_units:\s*(\d+)", output)[-1]), int(reached[-1])

    begin = time.monotonic()
    with ThreadPoolExecutor(processes) as pool:
        executions, edges = zip(*pool.map(process, range(processes)), strict=True)
    return {
        "executions": sum(executions),
        "processes": processes,
        "seconds": round(time.monotonic() - begin),
        "reached_edges": max(edges),
        "corpus_files": len(list(corpus(target).iterdir())),
        "corpus_bytes": sum(path.stat().st_size for path in corpus(target).iterdir()),
        "findings": 0,  # the first would have ended its program, and this function
    }


def minimise(target: str, program: Path, found: Path) -> None:
    """Write the corpus anew: few and short inputs of `found` and the old corpus that reach the same code."""
    old = corpus(target)
    with tempfile.TemporaryDirectory() as scratch:
        new = Path(scratch)
        execute([str(program), "-set_cover_merge=1", "-use_counters=0", f"-max_len={MAX_LENGTH}", str(new), str(old),
                 *map(str, found.iterdir())])  # fmt: skip
        size = sum(path.stat().st_size for path in new.iterdir())
        if size > CORPUS_BYTES:
            raise FuzzError(f"the corpus of {target} would have {size} bytes, more than {CORPUS_BYTES}")
        shutil.rmtree(old, ignore_errors=True)
        shutil.copytree(new, old)


def record(code: dict[str, str], results: dict[str, dict[str, int]]) -> dict[str, Any]:
    """A record for bench/records: what ran where, of which code."""
    return {
        "bench": "fuzz",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": shlex.join(runner.portable(["python", "-m", "tools.fuzz.run", *sys.argv[1:]])),
        "machine": machine.describe(),
        "code": code,
        "executions": sum(result["executions"] for result in results.values()),
        "findings": sum(result["findings"] for result in results.values()),
        "arms": {target: {"metrics": result} for target, result in results.items()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET[=RUNS]", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--all", action="store_true", help="every target")
    parser.add_argument("--seconds", type=int, default=0, help="of search for each target")
    parser.add_argument("--processes", type=int, default=machine.usable_cores(), help="default: one a core")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="build the programs for another machine, and end")
    parser.add_argument("--built", type=Path, metavar="FOLDER", help="search with the programs of --build")
    parser.add_argument("--minimise", action="store_true", help="write the corpus anew, with what the search found")
    parser.add_argument("--record", type=Path, nargs="?", const=runner.RECORDS, metavar="FOLDER",
                        help="write a record; without a folder to bench/records")  # fmt: skip
    options = parser.parse_args()
    try:
        runs = {name: int(count or -1) for name, _, count in (word.partition("=") for word in options.targets)}
    except ValueError:
        parser.error("the number of runs is not whole")
    runs = runs or dict.fromkeys(TARGETS if options.all else (), -1)
    if not options.build and (
        not runs or set(runs) - set(TARGETS) or (options.seconds <= 0 and min(runs.values()) <= 0)
    ):
        parser.error("give targets or --all, and --seconds or a number of runs for each")
    if options.processes < 1:
        parser.error(f"--processes is {options.processes}; it must be at least 1")
    try:
        if options.build:
            programs.pack(options.build)
            return 0
        if options.record:
            code = programs.packed_description(options.built) if options.built else programs.describe()
        results = {}
        for target, count in runs.items():
            built = options.built
            program = programs.packed(built, target) if built else programs.build(target, for_search=True)
            with tempfile.TemporaryDirectory() as folder:
                results[target] = search(
                    target, program, Path(folder), seconds=options.seconds, runs=count, processes=options.processes
                )
                print(target, json.dumps(results[target]), flush=True)
                if options.minimise:
                    minimise(target, program, Path(folder))
        if options.record:
            print(runner.write_record(record(code, results), options.record))
    except (FuzzError, runner.BenchError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
