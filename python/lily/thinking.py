"""The think block while it is being generated: where it ends, and how a token budget ends it."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Sequence
from typing import Final

from .tokenizer import Tokenizer

OPEN: Final = "<think>"
CLOSE: Final = "</think>"
# The model reads this as its own last thought, so it goes on with the answer.
BRIDGE: Final = f"\n\nThat is enough thinking; the answer follows.\n{CLOSE}\n\n"


class ThinkingBudget:
    """Counts the tokens of the think block at the start of an answer, and closes it when `budget` of them are used.

    inside: the prompt has opened the block already. bridge: the token ids that close it (`bridge_ids`).
    """

    def __init__(self, budget: int, bridge: Sequence[int], id_to_bytes: Sequence[bytes], *, inside: bool) -> None:
        self._left = budget
        self._bridge = bridge
        self._id_to_bytes = id_to_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""  # as much of its end as may hold a tag
        self._inside = inside
        self._forced: deque[int] = deque()
        self.is_over = False  # the block is closed, or there is none
        self._check()

    @property
    def forced_token(self) -> int | None:
        """The token that must come next, or None."""
        return self._forced[0] if self._forced else None

    def push(self, token_id: int) -> None:
        """Count a token of the answer."""
        if self._forced:
            self._forced.popleft()
            self.is_over = not self._forced
            return
        self._text += self._decoder.decode(self._id_to_bytes[token_id])
        if self._inside:
            self._left -= 1
            self.is_over = CLOSE in self._text
            self._text = self._text[1 - len(CLOSE) :]
        else:
            self._find_start()
        self._check()

    def _find_start(self) -> None:
        start = self._text.lstrip()
        if start.startswith(OPEN):
            self._inside, self._text = True, start.removeprefix(OPEN)
        else:
            self.is_over = not OPEN.startswith(start)

    def _check(self) -> None:
        # Not inside a character: what is forced next would break it.
        if self._inside and not self.is_over and self._left <= 0 and not self._decoder.getstate()[0]:
            self._forced.extend(self._bridge)


def bridge_ids(tokenizer: Tokenizer) -> list[int]:
    """Token ids of BRIDGE, with the closing tag as the model's own token."""
    return tokenizer.encode(BRIDGE, allow_special=True)


def opens_thinking(token_ids: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Whether a prompt ends with an opened think block, so that the answer starts inside it."""
    tag = tokenizer.added_tokens.get(OPEN)
    for token_id in reversed(token_ids):
        if token_id == tag:
            return True
        if tokenizer.id_to_bytes[token_id].strip():
            return False
    return False
