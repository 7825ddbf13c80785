"""Text from files and from standard input, which is UTF-8 or refused by name."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from lily.unicode import first_wrong_byte


def file_text(path: str | Path) -> str:
    """Text of a file; "-" is standard input. Raises ValueError for what is not UTF-8, OSError."""
    if str(path) == "-":
        return _text(sys.stdin.buffer.read(), "standard input")
    return _text(Path(path).read_bytes(), str(path))


def input_lines() -> Iterator[str]:
    """Lines of standard input, without their ends, as they come. Raises ValueError for one that is not UTF-8."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        yield _text(line, f"line {number} of standard input").removesuffix("\n")


def _text(content: bytes, source: str) -> str:
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        wrong = first_wrong_byte(error)
        raise ValueError(f"{source} is not UTF-8 text ({wrong}); convert it, as with iconv -t UTF-8") from None
    return StringIO(text, newline=None).read()  # ends of lines as in files that are opened as text
