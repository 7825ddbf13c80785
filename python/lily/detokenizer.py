"""Token ids to text, one token at a time: exact for every split of a character over tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from .stop import StopMatcher


class Detokenizer:
    """Joins the bytes of tokens, ends at a stop string and decodes UTF-8 incrementally.

    Bytes that never become a character are shown as U+FFFD, as `bytes.decode(errors="replace")` does for a whole text.
    """

    def __init__(
        self, id_to_bytes: Sequence[bytes], stop: Sequence[str] = (), *, include_stop_str_in_output: bool = False
    ) -> None:
        self._id_to_bytes = id_to_bytes
        self._matcher = StopMatcher(stop) if stop else None
        self._include_stop = include_stop_str_in_output
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int, *, look_for_stop: bool = True) -> tuple[str, str | None]:
        """The text that this token makes certain, and the stop string if it is complete now.

        look_for_stop=False: neither this token nor the held-back text before it can be part of a match.
        """
        piece = self._id_to_bytes[token_id]
        if self._matcher is None:
            return self._decoder.decode(piece), None
        if not look_for_stop:
            return self._decoder.decode(self._matcher.flush() + piece), None
        released, stop = self._matcher.push(piece)
        if stop is not None and self._include_stop:
            released += stop.encode()
        return self._decoder.decode(released, final=stop is not None), stop

    def flush(self) -> str:
        """The rest of the text, held back until now. Call once, at the end of a text that no stop string ended."""
        held = self._matcher.flush() if self._matcher is not None else b""
        return self._decoder.decode(held, final=True)
