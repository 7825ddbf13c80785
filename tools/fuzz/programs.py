"""The programs of the fuzz targets: compiled here, or compiled before and brought along.

A target is one C++ file of this folder. It is built with AddressSanitizer and UndefinedBehaviorSanitizer, so that any
fault ends it: for a search with clang's libFuzzer, for a replay with the compiler of the extension.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from bench import runner

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
BUILD = ROOT / "build" / "fuzz"
TARGETS = ("header_json", "safetensors", "checkpoint")
SOURCES = [ROOT / "src/lily_core/model" / f"{stem}.cpp" for stem in
           ("mapped_file", "safetensors", "header_json", "tensor_source", "checkpoint")]  # fmt: skip
SANITIZE = ("-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
# A search may run on another machine: it needs nothing there but the C library.
PORTABLE = ("-static-libstdc++", "-static-libgcc")
MANIFEST = "build.json"


class FuzzError(Exception):
    """A target cannot be built or was not built, or a fault was found."""


@cache
def can_search() -> bool:
    """Whether clang++ is there, with libFuzzer and the sanitizers."""
    if not shutil.which("clang++"):
        return False
    source = 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
    with tempfile.TemporaryDirectory() as folder:
        command = ["clang++", "-fsanitize=fuzzer,address,undefined", "-x", "c++", "-", "-o", f"{folder}/x"]
        return not subprocess.run(command, input=source, capture_output=True, text=True).returncode


def build(target: str, *, for_search: bool) -> Path:
    """The program of a target, built when a source is newer. Raises FuzzError with the compiler's words."""
    compiler = "clang++" if for_search else os.environ.get("CXX", "c++")
    if not shutil.which(compiler):
        raise FuzzError(f"{compiler} is not installed")
    kind = "search" if for_search else "replay"
    sanitizers = "-fsanitize=" + ("fuzzer-no-link," if for_search else "") + "address,undefined"
    includes = [f"-I{ROOT / 'src/lily_core'}", f"-I{FOLDER}"]
    command = [compiler, "-std=c++20", "-O1", "-g", sanitizers, *SANITIZE, *includes]
    sources = [FOLDER / f"{target}.cpp", *SOURCES, *([] if for_search else [FOLDER / "replay.cpp"])]
    headers = [*FOLDER.glob("*.h"), *(ROOT / "src/lily_core").glob("*.h"), *(ROOT / "src/lily_core/model").glob("*.h")]
    newest_header = max((path.stat().st_mtime for path in headers), default=0.0)
    BUILD.mkdir(parents=True, exist_ok=True)
    objects = []
    for source in sources:
        objects.append(BUILD / f"{source.stem}{'-target' if source.parent == FOLDER else ''}-{kind}.o")
        if not _is_newer(objects[-1], max(newest_header, source.stat().st_mtime)):
            _compile(target, [*command, "-c", str(source), "-o", str(objects[-1])])
    program = BUILD / f"{target}-{kind}"
    if not _is_newer(program, max(path.stat().st_mtime for path in objects)):
        linked = [option.replace("fuzzer-no-link", "fuzzer") for option in command]
        linked += PORTABLE if for_search else ()
        _compile(target, [*linked, *map(str, objects), "-o", str(program)])
    return program


def _is_newer(path: Path, time: float) -> bool:
    return path.exists() and path.stat().st_mtime >= time


def _compile(target: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise FuzzError(f"{target} cannot be built: {done.stderr.strip()[-2000:]}")


def describe() -> dict[str, str]:
    """Commit and compiler of what is built here. DirtyCheckoutError if that is not what the commit holds."""
    if changes := runner.git(ROOT, "status", "--porcelain", "--", "src", "tools/fuzz"):
        raise runner.DirtyCheckoutError(f"the checkout has changes: commit them, then run this again\n{changes}")
    version = subprocess.run(["clang++", "--version"], check=True, capture_output=True, text=True).stdout
    return {"commit": runner.git(ROOT, "rev-parse", "HEAD"), "compiler": version.splitlines()[0]}


def pack(folder: Path) -> None:
    """Build every target for a search into `folder`, and say there of which commit."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = describe()
    for target in TARGETS:
        shutil.copy(build(target, for_search=True), folder / target)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def packed(folder: Path, target: str) -> Path:
    """The program of a target that `pack` wrote."""
    program = folder / target
    if not program.is_file():
        raise FuzzError(f"{folder} holds no {target}: make it with 'python -m tools.fuzz.run --build {folder}'")
    return program


def packed_description(folder: Path) -> dict[str, str]:
    """What `pack` wrote about its build."""
    try:
        return dict(json.loads((folder / MANIFEST).read_text()))
    except (OSError, ValueError) as error:
        raise FuzzError(f"{folder}: no {MANIFEST} of 'python -m tools.fuzz.run --build': {error}") from error
