"""Free text at the start of a grammar, where a mask depends on so little that it is computed only once."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class FreeText:
    """Follows a text that may say anything up to the first of `tags`, which is none of it if there are no tags."""

    def __init__(self, tags: Sequence[str]) -> None:
        self._tags = tags
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._end = ""
        self._is_over = not tags

    @property
    def half_tag(self) -> str | None:
        """The longest end of the text that a tag starts with.

        The state of the grammar is a function of it alone, as that of a search for the tags is (Aho and Corasick,
        1975). None inside a character, where few tokens can follow, and behind the first complete tag.
        """
        return None if self._is_over or self._decoder.getstate()[0] else self._end

    def push(self, piece: bytes) -> None:
        """Go on by the bytes of a token."""
        if self._is_over:
            return
        text = self._end + self._decoder.decode(piece)
        self._is_over = any(tag in text for tag in self._tags)
        longest = max(map(len, self._tags)) - 1
        ends = (text[start:] for start in range(max(len(text) - longest, 0), len(text)))
        self._end = next((end for end in ends if any(tag.startswith(end) for tag in self._tags)), "")
