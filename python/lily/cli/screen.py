"""How an answer appears: Markdown on a terminal where rich is installed, plain text everywhere else."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Final, Protocol, TextIO

_DIM: Final = "\x1b[2m"
_RESET: Final = "\x1b[0m"


class Screen(Protocol):
    """Shows one answer after another, piece by piece."""

    def reasoning(self, text: str) -> None: ...
    def content(self, text: str) -> None: ...
    def end(self, note: str = "") -> None:
        """The answer is complete, or was stopped. note: a line about it."""


def make_screen() -> Screen:
    if has_colours() and importlib.util.find_spec("rich") is not None:
        return MarkdownScreen()
    return PlainScreen(sys.stdout if sys.stdout.isatty() else sys.stderr, colours=has_colours())


def has_colours() -> bool:
    """Whether stdout is a terminal that knows colours, and its user wants them (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in (None, "dumb")


def dim(text: str, colours: bool) -> str:
    return f"{_DIM}{text}{_RESET}" if colours else text


class PlainScreen:
    """Content on stdout, the think block on `thoughts`: stdout, where it is dim, or stderr."""

    def __init__(self, thoughts: TextIO, *, colours: bool) -> None:
        self._thoughts = thoughts
        self._colours = colours
        self._thinks = False

    def reasoning(self, text: str) -> None:
        if text:
            self._thoughts.write(dim(text if self._thinks else f"thinking: {text}", self._colours))
            self._thoughts.flush()
            self._thinks = True

    def content(self, text: str) -> None:
        if text:
            self._end_thinking()
            sys.stdout.write(text)
            sys.stdout.flush()

    def end(self, note: str = "") -> None:
        self._end_thinking()
        print(flush=True)
        if note:
            print(dim(note, self._colours), file=self._thoughts, flush=True)

    def _end_thinking(self) -> None:
        if self._thinks:
            self._thoughts.write("\n")
            self._thoughts.flush()
            self._thinks = False


class MarkdownScreen:
    """Markdown by rich, block after block: only the block that is being written is drawn again with each piece."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False)
        self._live: Live | None = None
        self._plain = PlainScreen(sys.stdout, colours=True)
        self._thinks = False
        self._block = ""

    def reasoning(self, text: str) -> None:
        self._thinks = self._thinks or bool(text)
        self._plain.reasoning(text)

    def content(self, text: str) -> None:
        if not text:
            return
        if self._thinks:
            self._console.print()
            self._thinks = False
        self._block += text
        while (cut := block_end(self._block)) is not None:
            self._finish(self._block[:cut])
            self._block = self._block[cut:]
        self._draw(self._block)

    def end(self, note: str = "") -> None:
        if self._block.strip():
            self._finish(self._block)
        elif self._live is not None:
            self._live.stop()
        self._live, self._block, self._thinks = None, "", False
        self._plain = PlainScreen(sys.stdout, colours=True)
        if note:
            print(dim(note, True), flush=True)

    def _draw(self, text: str) -> None:
        from rich.live import Live
        from rich.markdown import Markdown

        if not text.strip():
            return
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="ellipsis")
            self._live.start()
        self._live.update(Markdown(text), refresh=True)

    def _finish(self, text: str) -> None:
        """Print a block for good; the live drawing of it, which shows at most a screen, makes room."""
        from rich.markdown import Markdown

        if self._live is not None:
            self._live.transient = True
            self._live.stop()
            self._live = None
        self._console.print(Markdown(text))


def block_end(text: str) -> int | None:
    """Where the first Markdown block of `text` ends: behind an empty line outside of a fence. None if nowhere."""
    place, fence = 0, ""
    for line in text.split("\n")[:-1]:  # not splitlines(), which cuts at other characters too
        stripped = line.strip()
        place += len(line) + 1
        mark = stripped[:3]
        if fence:
            if mark == fence and not stripped.strip(fence[0]):
                fence = ""
        elif mark in ("```", "~~~"):
            fence = mark
        elif not stripped and text[:place].strip():
            return place
    return None
