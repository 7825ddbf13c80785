"""A folder of PTX files, named after what they were made from: a machine without a compiler finds them again."""

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tools.msl.build import Source, fingerprint, ptx


@dataclass(frozen=True)
class PtxFolder:
    path: Path

    def add(self, shader: Path, defines: Mapping[str, str]) -> None:
        """Compiles a shader, unless it is here already."""
        path = self._file(shader, defines)
        if not path.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(ptx(Source.read(shader, defines)).encode(), mtime=0))

    def find(self, shader: Path, defines: Mapping[str, str]) -> str:
        """PTX text; FileNotFoundError where the folder was made from other shaders or for other sizes."""
        path = self._file(shader, defines)
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is missing: run `python -m tools.ptx build {self.path}` where there is a compiler"
            )
        return gzip.decompress(path.read_bytes()).decode()

    def _file(self, shader: Path, defines: Mapping[str, str]) -> Path:
        """The shader, what it includes, the macros in them and the translator are all that can change the PTX."""
        text = "\n".join(_texts(shader, set()))
        used = {name: defines[name] for name in sorted(set(re.findall(r"\bLILY_\w+", text)) & defines.keys())}
        digest = hashlib.sha256(fingerprint() + f"{text}\0{used}".encode()).hexdigest()
        return self.path / f"{shader.stem}-{digest[:16]}.ptx.gz"


def _texts(path: Path, seen: set[str]) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    yield text
    for name in re.findall(r'^#include "(\w+\.h)"', text, re.MULTILINE):
        if name not in seen:
            seen.add(name)
            yield from _texts(path.parent / name, seen)
