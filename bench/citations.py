"""Numbers in Markdown that cite a record.

A cited number is followed by a comment that names a record and the path to the value in it:

    123.5 <!-- record: bench/records/decode-x.json#arms.lily.metrics.decode_tokens_per_second.median --> tok/s

Rounding is by the digits shown: 123.5 agrees with 123.4537. A table cell that holds a speed or a time must
cite a record: one that says tok/s, seconds, s, ms or µs itself, or stands in a row or a column that does.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path

NUMBER = r"-?\d[\d,]*(?:\.\d+)?"
CITATION = re.compile(rf"(?P<number>{NUMBER})?[^\S\n]*<!--\s*record:\s*(?P<file>[^#\s]+)#(?P<path>\S+?)\s*-->")
WORD = r"(?:tok/s|[Tt]okens?[ _]per[ _]second|[Ss]econds?|ms|µs|s)(?![\w/])"
UNIT = re.compile(rf"(?<![\w/'’]){WORD}")  # noqa: RUF001
MEASURED = re.compile(rf"\d\s*{WORD}")
CODE_BLOCK = re.compile(r"^```.*?^```\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Citation:
    """A number as it is shown, and where it comes from."""

    shown: str
    file: str
    path: str


def citations(text: str) -> Iterator[Citation]:
    """All citations of a Markdown text. Raises ValueError for one that follows no number."""
    for match in CITATION.finditer(text):
        if match["number"] is None:
            raise ValueError(f"citation of {match['file']}#{match['path']} follows no number")
        yield Citation(match["number"], match["file"], match["path"])


def problem(citation: Citation, root: Path) -> str | None:
    """Why the citation is wrong, or None. `root` is the folder that record files are relative to."""
    file = root / citation.file
    if not file.is_file():
        return f"{citation.file} does not exist"
    value, rest = json.loads(file.read_text()), citation.path
    while rest:
        # A name may hold a dot itself, as llama.cpp does.
        keys = [key for key in (value if isinstance(value, dict) else ()) if f"{rest}.".startswith(f"{key}.")]
        if not keys:
            return f"{citation.file} has no {citation.path}"
        key = max(keys, key=len)
        value, rest = value[key], rest[len(key) + 1 :]
    if type(value) not in (int, float):
        return f"{citation.file}#{citation.path} is {value!r}, not a number"
    shown = Decimal(citation.shown.replace(",", ""))
    digits = len(citation.shown.partition(".")[2])
    rounded = Decimal(repr(value)).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN)
    return None if rounded == shown else f"shows {citation.shown}, {citation.file}#{citation.path} is {value!r}"


def uncited_cells(text: str) -> Iterator[str]:
    """Table cells with a speed or a time that cites no record."""
    header: list[str] = []
    for line in CODE_BLOCK.sub("", text).splitlines():
        if not line.lstrip().startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not header:
            header = cells
            continue
        for index, cell in enumerate(cells):
            column = header[index] if index < len(header) else ""
            plain = CITATION.sub(" ", cell)
            named = UNIT.search(column) or (index > 0 and UNIT.search(cells[0]))
            if MEASURED.search(plain) or (named and re.search(r"\d", plain)):
                yield cell
