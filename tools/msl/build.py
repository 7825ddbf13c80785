"""Runs clang (PyPI ziglang) on translated shaders. Nothing else of the machine is used."""

import hashlib
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from .entries import cpu_entries, ptx_entries
from .errors import ShaderError
from .translate import Kernel, Translation, translate

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
INCLUDE = HERE / "include"
CACHE = ROOT / "build" / "msl"
MATH_MODES = {
    "safe": [],
    "relaxed": [
        "-fassociative-math",
        "-freciprocal-math",
        "-fno-signed-zeros",
        "-fno-trapping-math",
        "-ffp-contract=fast",
    ],
    "fast": ["-ffast-math"],
}
_CPU = ["--target=x86_64-linux-gnu", "-march=x86-64-v3", "-fPIC", "-O3", "-fvisibility=hidden",
        "-fsanitize=array-bounds,shift-exponent", "-fno-sanitize-recover=all"]  # fmt: skip
_PTX = ["--target=nvptx64-nvidia-cuda", "-march=sm_90", "-Xclang", "-target-feature", "-Xclang", "+ptx80", "-O3",
        "-mllvm", "-inline-threshold=1000000", "-S"]  # fmt: skip
_LANGUAGE = ["-x", "c++", "-std=c++20", "-nostdinc", "-D__METAL_VERSION__=400", "-Wno-unknown-attributes",
             "-fno-exceptions", "-fno-rtti"]  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A shader: its text, the name that messages give it, macros, and folders for what it includes."""

    text: str
    name: str = "program_source"
    defines: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[Path] = ()

    @classmethod
    def read(cls, path: Path, defines: Mapping[str, str] | None = None) -> "Source":
        """A file; what it includes lies beside it."""
        return cls(path.read_text(encoding="utf-8"), path.name, defines or {}, (path.parent,))


@cache
def zig() -> str:
    """The compiler's path."""
    try:
        import ziglang
    except ImportError as error:
        raise ShaderError("error: shaders are compiled by clang from PyPI: pip install ziglang") from error
    return str(Path(ziglang.__file__).parent / "zig")


def _run(arguments: Sequence[str | Path], text: str | None = None) -> str:
    command = [zig(), *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    if done.returncode:
        raise ShaderError(done.stderr.strip() or f"error: {' '.join(command)} ended with {done.returncode}")
    return done.stdout


def expand(source: Source) -> str:
    """The text after the preprocessor, with line markers; Metal's own headers are empty: its words are left alone."""
    defines = [f"-D{name}={value}" for name, value in source.defines.items()]
    folders = [f"-I{folder}" for folder in source.folders]
    flags = [*_LANGUAGE, "-DMSL_EXPAND", "-isystem", INCLUDE, *defines, *folders]
    return _run(["clang", "-E", *flags, "-"], f'#line 1 "{source.name}"\n{source.text}\n')


def _headers(expanded: str) -> str:
    tensor = "MetalPerformancePrimitives.h" in expanded
    matrix = "metal_simdgroup_matrix" in expanded
    return (
        "#include <metal_stdlib>\n"
        + ("#include <metal_simdgroup_matrix>\n" if matrix else "")
        + ("#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>\n" if tensor else "")
    )


def cplusplus_of(expanded: str, done: Translation) -> str:
    """A translated shader behind the headers that it included."""
    return f"{_headers(expanded)}{done.text}\n"


def cplusplus(source: Source, entries: str) -> tuple[str, list[Kernel]]:
    """C++ of a shader with launch entries for "cpu" or "ptx"."""
    expanded = expand(source)
    done = translate(expanded, source.name)
    tail = (cpu_entries if entries == "cpu" else ptx_entries)(done.kernels)
    return cplusplus_of(expanded, done) + tail, done.kernels


@cache
def fingerprint() -> bytes:
    """Changes whenever this package does."""
    digest = hashlib.sha256()
    for path in sorted(p for p in HERE.rglob("*") if p.is_file() and "__pycache__" not in p.parts):
        digest.update(path.read_bytes())
    return digest.digest()


def _cached(suffix: str, source: Source, flags: Sequence[str]) -> Path:
    """Where the output for this source and these flags lies, by content."""
    digest = hashlib.sha256(fingerprint())
    for part in (source.name, source.text, *flags, *(f"{k}={v}" for k, v in sorted(source.defines.items()))):
        digest.update(part.encode() + b"\0")
    for folder in source.folders:
        for header in sorted(folder.glob("*.h")):
            digest.update(header.read_bytes())
    return CACHE / f"{digest.hexdigest()[:32]}{suffix}"


def library(source: Source, math: str = "safe") -> Path:
    """A shared library for the CPU runtime, compiled once for the same source, in one of the MATH_MODES."""
    if platform.machine() != "x86_64":
        raise ShaderError(f"error: shaders run on x86-64 CPUs only, this is {platform.machine()}")
    path = _cached(".so", source, [math])
    if not path.exists():
        compile_library(source, path, math)
    return path


def compile_library(source: Source, path: Path, math: str = "safe") -> None:
    """Compiles a shared library for the CPU runtime to `path`."""
    text, kernels = cplusplus(source, "cpu")
    if not kernels:
        raise ShaderError(f"{source.name}:1: error: there is no kernel")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        unit, linked = Path(folder) / "shader.o", Path(folder) / "shader.so"
        _run(["clang", *_LANGUAGE, *_CPU, *MATH_MODES[math], "-isystem", INCLUDE, "-c", "-", "-o", unit], text)
        _run(["ld.lld", "-shared", unit, "-o", linked])
        os.replace(linked, path)


def ptx(source: Source) -> str:
    """PTX of a shader for sm_90."""
    path = _cached(".ptx", source, ["ptx"])
    if not path.exists():
        text, _ = cplusplus(source, "ptx")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            out = Path(folder) / "shader.ptx"
            _run(["clang", *_LANGUAGE, *_PTX, "-isystem", INCLUDE, "-", "-o", out], text)
            os.replace(out, path)
    return path.read_text(encoding="utf-8")


_SHARED = re.compile(
    r"^\s*(?:\.visible |\.weak )?\.shared (?:\.align \d+ )?\.[bufs](\d+) ([\w$]+)(?:\[(\d+)\])?;", re.MULTILINE
)


def threadgroup_bytes(text: str) -> dict[str, int]:
    """Bytes of static threadgroup memory of every kernel of a PTX module: what the optimiser keeps, a lower bound."""
    sizes = {m[2]: int(m[1]) // 8 * int(m[3] or 1) for m in _SHARED.finditer(text)}
    return {
        m[1]: sum(size for name, size in sizes.items() if re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", m[2]))
        for m in re.finditer(r"\.entry msl_entry_(\w+)\((.*?)^}", text, re.DOTALL | re.MULTILINE)
    }
