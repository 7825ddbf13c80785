"""Splits generated chat text into reasoning and content, one piece at a time."""

from __future__ import annotations

from typing import Final

_OPEN: Final = "<think>"
_CLOSE: Final = "</think>"


class ReasoningParser:
    """Text up to `</think>` is reasoning, the rest is content. Any split of the text gives the same result.

    inside: the prompt has opened the think block already. Otherwise a block counts only at the very start of the text.
    White space around the reasoning and before the content that follows it belongs to the format and is left out.
    """

    def __init__(self, *, inside: bool) -> None:
        self.inside = inside
        self._at_start = not inside  # an opening tag may still come
        self._skip_space = inside  # white space at the start of a part
        self._pending = ""

    def push(self, text: str) -> tuple[str, str]:
        """Add text; returns the pieces of (reasoning, content) that are certain now."""
        self._pending += text
        if self._at_start:
            start = self._pending.lstrip()
            if len(start) < len(_OPEN) and _OPEN.startswith(start):
                return "", ""
            self._at_start = False
            if start.startswith(_OPEN):
                self.inside = self._skip_space = True
                self._pending = start[len(_OPEN) :]
        reasoning = self._take_reasoning() if self.inside else ""
        return reasoning, "" if self.inside else self._take_content()

    def flush(self) -> tuple[str, str]:
        """The rest of the text, held back until now."""
        rest, self._pending = self._pending, ""
        if self.inside:
            return self._without_leading_space(rest).rstrip(), ""
        return "", self._without_leading_space(rest)

    def _take_reasoning(self) -> str:
        text = self._without_leading_space(self._pending)
        end = text.find(_CLOSE)
        if end >= 0:
            self.inside, self._skip_space = False, True
            self._pending = text[end + len(_CLOSE) :]
            return text[:end].rstrip()
        held = next((n for n in range(len(_CLOSE) - 1, 0, -1) if text.endswith(_CLOSE[:n])), 0)
        certain = text[: len(text) - held].rstrip()
        self._pending = text[len(certain) :]
        return certain

    def _take_content(self) -> str:
        text, self._pending = self._without_leading_space(self._pending), ""
        return text

    def _without_leading_space(self, text: str) -> str:
        if self._skip_space:
            text = text.lstrip()
            self._skip_space = not text
        return text
