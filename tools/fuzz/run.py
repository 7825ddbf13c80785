"""Fuzz the readers of checkpoint files: build a target, replay its corpus, or search for new inputs with libFuzzer.

    python -m tools.fuzz.run safetensors --seconds 60
    python -m tools.fuzz.run header_json=4000000 safetensors=4000000 checkpoint=2000000 --record

A target is one C++ file in this folder. It is built with AddressSanitizer and UndefinedBehaviorSanitizer, so that any
fault ends it. `corpus/TARGET` holds inputs that together reach all code that was ever reached; a search starts there
and `--minimise` writes it anew. libFuzzer comes with clang (Debian: clang and libclang-rt-dev); replaying needs only
the compiler of the extension.
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
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from bench import machine, runner

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
BUILD = ROOT / "build" / "fuzz"
TARGETS = ("header_json", "safetensors", "checkpoint")
SOURCES = [ROOT / "src/lily_core/model" / f"{stem}.cpp" for stem in
           ("mapped_file", "safetensors", "header_json", "tensor_source", "checkpoint")]  # fmt: skip
SANITIZE = ("-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
MAX_LENGTH = 600  # bytes of an input: long enough for three tensors
CORPUS_BYTES = 150_000  # that a corpus may have in the repository


class FuzzError(Exception):
    """A target cannot be built, or a fault was found."""


def compiler(for_search: bool) -> list[str]:
    """Command of clang++ for a search, else of the extension's compiler. Raises FuzzError if there is none."""
    names = ("clang++",) if for_search else (os.environ.get("CXX", "c++"),)
    if not shutil.which(names[0]):
        raise FuzzError(f"{names[0]} is not installed")
    return [names[0]]


@cache
def can_search() -> bool:
    """Whether clang++ is there, with libFuzzer and the sanitizers."""
    source = 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
    with tempfile.TemporaryDirectory() as folder:
        try:
            command = [*compiler(for_search=True), "-fsanitize=fuzzer,address,undefined", "-x", "c++", "-"]
        except FuzzError:
            return False
        return not subprocess.run(
            [*command, "-o", f"{folder}/x"], input=source, capture_output=True, text=True
        ).returncode


def build(target: str, *, for_search: bool) -> Path:
    """The program of a target, built when a source is newer. Raises FuzzError with the compiler's words."""
    kind = "search" if for_search else "replay"
    sanitizers = "-fsanitize=" + ("fuzzer-no-link," if for_search else "") + "address,undefined"
    includes = [f"-I{ROOT / 'src/lily_core'}", f"-I{FOLDER}"]
    command = [*compiler(for_search), "-std=c++20", "-O1", "-g", sanitizers, *SANITIZE, *includes]
    sources = [FOLDER / f"{target}.cpp", *SOURCES, *([] if for_search else [FOLDER / "replay.cpp"])]
    headers = [*FOLDER.glob("*.h"), *(ROOT / "src/lily_core").glob("*.h"), *(ROOT / "src/lily_core/model").glob("*.h")]
    newest_header = max((path.stat().st_mtime for path in headers), default=0.0)
    BUILD.mkdir(parents=True, exist_ok=True)
    objects = []
    for source in sources:
        objects.append(BUILD / f"{source.stem}{'-target' if source.parent == FOLDER else ''}-{kind}.o")
        if not is_newer(objects[-1], max(newest_header, source.stat().st_mtime)):
            compile_or_raise(target, [*command, "-c", str(source), "-o", str(objects[-1])])
    program = BUILD / f"{target}-{kind}"
    if not is_newer(program, max(path.stat().st_mtime for path in objects)):
        linked = [option.replace("fuzzer-no-link", "fuzzer") for option in command]
        compile_or_raise(target, [*linked, *map(str, objects), "-o", str(program)])
    return program


def is_newer(path: Path, time: float) -> bool:
    return path.exists() and path.stat().st_mtime >= time


def compile_or_raise(target: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise FuzzError(f"{target} cannot be built: {done.stderr.strip()[-2000:]}")


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
    output = execute([str(build(target, for_search=False)), str(corpus(target))])
    return int(re.findall(r"^(\d+) inputs$", output, re.MULTILINE)[-1])


def search(target: str, *, seconds: int = 0, runs: int = -1, keep: Path | None = None) -> dict[str, int]:
    """Search for inputs that end the target; what was done. New inputs that reach new code are left in `keep`."""
    program = build(target, for_search=True)
    with tempfile.TemporaryDirectory() as scratch:
        found = keep or Path(scratch)
        options = [f"-max_len={MAX_LENGTH}", f"-dict={FOLDER / 'tokens.dict'}", "-timeout=10", "-rss_limit_mb=0"]
        options += [f"-max_total_time={seconds}", f"-runs={runs}", "-print_final_stats=1"]
        options += [f"-artifact_prefix={BUILD}/{target}-"]
        begin = time.monotonic()
        output = execute([str(program), *options, str(found), str(corpus(target))])
        elapsed = time.monotonic() - begin
        reached = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)/", output)
        return {
            "executions": int(re.findall(r"stat::number_of_executed_units:\s*(\d+)", output)[-1]),
            "seconds": round(elapsed),
            "reached_edges": int(reached[-1][0]),
            "corpus_files": len(list(corpus(target).iterdir())),
            "corpus_bytes": sum(path.stat().st_size for path in corpus(target).iterdir()),
            "findings": 0,  # the first would have ended the program, and this function
        }


def minimise(target: str, found: Path) -> None:
    """Write the corpus anew: few and short inputs of `found` and the old corpus that reach the same code."""
    program = build(target, for_search=True)
    old = corpus(target)
    new = BUILD / f"corpus-{target}"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    sources = [str(folder) for folder in (old, found) if folder.is_dir()]
    execute([str(program), "-set_cover_merge=1", "-use_counters=0", f"-max_len={MAX_LENGTH}", str(new), *sources])
    size = sum(path.stat().st_size for path in new.iterdir())
    if size > CORPUS_BYTES:
        raise FuzzError(f"the corpus of {target} would have {size} bytes, more than {CORPUS_BYTES}")
    shutil.rmtree(old, ignore_errors=True)
    shutil.copytree(new, old)


def clean_commit() -> str:
    """The commit of this checkout. DirtyCheckoutError if what is built from it is not that of the commit."""
    if changes := runner.git(ROOT, "status", "--porcelain", "--", "src", "tools/fuzz"):
        raise runner.DirtyCheckoutError(f"the checkout has changes: commit them, then run this again\n{changes}")
    return runner.git(ROOT, "rev-parse", "HEAD")


def record(results: dict[str, dict[str, int]]) -> dict[str, Any]:
    """A record for bench/records: what ran where, of which commit. DirtyCheckoutError unless the checkout is clean."""
    version = subprocess.run(["clang++", "--version"], check=True, capture_output=True, text=True).stdout
    return {
        "bench": "fuzz",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": shlex.join(["python", "-m", "tools.fuzz.run", *sys.argv[1:]]),
        "machine": machine.describe(),
        "code": {"commit": clean_commit(), "compiler": version.splitlines()[0]},
        "executions": sum(result["executions"] for result in results.values()),
        "findings": sum(result["findings"] for result in results.values()),
        "targets": results,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET[=RUNS]", help=f"of {', '.join(TARGETS)}")
    parser.add_argument("--all", action="store_true", help="every target")
    parser.add_argument("--seconds", type=int, default=0, help="of search for each target")
    parser.add_argument("--minimise", action="store_true", help="write the corpus anew, with what the search found")
    parser.add_argument("--record", action="store_true", help="write a record to bench/records")
    options = parser.parse_args()
    try:
        runs = {name: int(count or -1) for name, _, count in (word.partition("=") for word in options.targets)}
    except ValueError:
        parser.error("the number of runs is not whole")
    runs = runs or dict.fromkeys(TARGETS if options.all else (), -1)
    if not runs or set(runs) - set(TARGETS) or (options.seconds <= 0 and min(runs.values()) <= 0):
        parser.error("give targets or --all, and --seconds or a number of runs for each")
    try:
        if options.record:
            clean_commit()
        results = {}
        for target, count in runs.items():
            with tempfile.TemporaryDirectory() as folder:
                results[target] = search(target, seconds=options.seconds, runs=count, keep=Path(folder))
                print(target, json.dumps(results[target]), flush=True)
                if options.minimise:
                    minimise(target, Path(folder))
        if options.record:
            print(runner.write_record(record(results)).relative_to(ROOT))
    except (FuzzError, runner.BenchError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
