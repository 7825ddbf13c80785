"""How kernels are cut into threadgroups: the constants of the shaders' headers and the table of the Metal device."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_HEADERS = [_ROOT / "shaders" / name for name in ("lily_args.h", "lily_grid.h")]
_TABLE = _ROOT / "src/lily_core/device/metal/grid.cpp"
_DEFINE = re.compile(r"^#define (LILY_\w+) +(\(.*\)|\w+)", re.MULTILINE)
_ROW = re.compile(r'\{"(\w+)", (true|false), \{([^}]*)\}, (\w+)(?:, (\d))?\},')
_FORMATS = ("q4g64", "q4g64w", "q8g64", "q8g64w")


@cache
def constants() -> dict[str, int]:
    """Whole numbers that shaders and C++ share, by their macro."""
    found: dict[str, int] = {}
    for header in _HEADERS:
        for name, text in _DEFINE.findall(header.read_text(encoding="utf-8")):
            words = re.sub(r"\b(0x[0-9a-f]+|\d+)u\b", r"\1", text).replace("/", "//")
            words = re.sub(r"\bLILY_\w+", lambda match: str(found[match[0]]), words)
            if re.fullmatch(r"0x[0-9a-f]+|[\d ()*/+]+", words):
                found[name] = int(eval(words, {"__builtins__": {}}))
    return found


@dataclass(frozen=True)
class Grid:
    """A row of the table: elements of the extent per threadgroup (0: the whole axis), and its threads."""

    op: str
    is_tile: bool
    elements: tuple[int, ...]
    threads: int
    weights: int

    @property
    def function(self) -> str:
        """The kernel's name in its shader."""
        return self.op + ("_tile" if self.is_tile else "")

    @property
    def shader(self) -> Path:
        return _ROOT / "shaders" / f"{self.op}.metal"

    def threadgroups(self, extent: Sequence[int]) -> tuple[int, ...]:
        pairs = zip(extent, self.elements, strict=True)
        return tuple(min(size, 1) if step == 0 else -(-size // step) for size, step in pairs)

    def kernel_names(self) -> list[str]:
        """With every format of the weights."""
        formats = product(_FORMATS, repeat=self.weights)
        return ["_".join([self.op, *names, "f16"]) + ("_tile" if self.is_tile else "") for names in formats]


@cache
def grids() -> tuple[Grid, ...]:
    """One per kernel that has a shader."""
    known = constants()

    def value(word: str) -> int:
        return known[word] if word in known else int(word)

    rows = _ROW.findall(_TABLE.read_text(encoding="utf-8"))
    return tuple(
        Grid(op, is_tile == "true", tuple(value(word.strip()) for word in elements.split(",")), value(threads),
             int(weights or 0))
        for op, is_tile, elements, threads, weights in rows
    )  # fmt: skip


def find_grid(kernel: str) -> Grid:
    """Of a kernel's full name; KeyError where it has no shader."""
    op = re.sub(r"(?:_q\dg64w?)*_f16(?:_tile)?$", "", kernel)
    is_tile = kernel.endswith("_tile")
    for grid in grids():
        if (grid.op, grid.is_tile) == (op, is_tile):
            return grid
    raise KeyError(kernel)
