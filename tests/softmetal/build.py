"""Builds software Metal and the driver of its tests into one library, once per state of the sources."""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.msl.build import zig

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CACHE = ROOT / "build" / "softmetal"
_COMMON = ["-std=c++20", "-O1", "-g", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}"]
_OBJECTIVE_C = [
    "--target=x86_64-linux-gnu", "-x", "objective-c++", "-fobjc-runtime=macosx-26.0", "-fblocks", "-fobjc-exceptions",
    "-fexceptions", "-nostdinc++", "-isystem", str(ROOT / "tools/metal_stub"),
]  # fmt: skip


def _compiler() -> str:
    return os.environ.get("CXX", "c++")


def _library_folders() -> list[str]:
    """Where the C++ compiler that links has its headers: clang reads the same."""
    command = [_compiler(), "-E", "-x", "c++", "-", "-v"]
    text = subprocess.run(command, input="", capture_output=True, text=True, check=True).stderr
    listed = re.search(r"#include <\.\.\.>.*?\n(.*?)End of search", text, re.DOTALL)
    assert listed, text
    folders = listed[1].split()
    own = str(Path(zig()).parent / "lib" / "include")  # stddef.h and its like
    return [flag for folder in (*(f for f in folders if "c++" in f), own) for flag in ("-isystem", folder)]


def _headers() -> bytes:
    folders = (HERE, ROOT / "tools/metal_stub", ROOT / "tools/msl/include/msl")
    return b"".join(p.read_bytes() for f in folders for p in sorted(f.rglob("*.h")))


def _object(source: Path, headers: bytes, folders: list[str]) -> Path:
    if source.suffix == ".mm":
        arc = "-fno-objc-arc" if source.name == "foundation.mm" else "-fobjc-arc"
        command = [zig(), "clang", *_OBJECTIVE_C, *folders, arc, *_COMMON]
    else:
        definitions = {"LILY_SOFTMETAL_PYTHON": sys.executable, "LILY_SOFTMETAL_ROOT": ROOT}
        command = [_compiler(), *(f'-D{name}="{value}"' for name, value in definitions.items()), *_COMMON]
    digest = hashlib.sha256(headers + source.read_bytes() + repr(command).encode()).hexdigest()[:32]
    built = CACHE / f"{source.stem}.{digest}.o"
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            unfinished = Path(folder) / built.name
            done = subprocess.run([*command, "-c", str(source), "-o", str(unfinished)], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            os.replace(unfinished, built)
    return built


def build() -> Path:
    """The library: software Metal with the scenarios of driver/ on top."""
    CACHE.mkdir(parents=True, exist_ok=True)
    sources = sorted([*HERE.glob("*.cpp"), *HERE.glob("*.mm"), *HERE.glob("driver/*.mm")])
    headers, folders = _headers(), _library_folders()
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda source: _object(source, headers, folders), sources))
    digest = hashlib.sha256("".join(o.name for o in objects).encode()).hexdigest()[:32]
    library = CACHE / f"{digest}.driver.so"
    if not library.exists():
        unfinished = library.with_suffix(f".{os.getpid()}")
        link = [_compiler(), "-shared", "-Wl,-z,defs", *map(str, objects), "-o", str(unfinished), "-lpthread", "-ldl"]
        subprocess.run(link, check=True)
        os.replace(unfinished, library)
    return library
