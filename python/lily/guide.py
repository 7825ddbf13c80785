"""What a completion may draw next: the tokens its grammar allows, or the one that its thinking budget forces."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .grammar import GrammarMatcher
from .thinking import ThinkingBudget


class Guide:
    """Combines a grammar and a thinking budget, each of which may be absent, into one mask per token."""

    def __init__(self, vocab_size: int, *, grammar: GrammarMatcher | None, budget: ThinkingBudget | None) -> None:
        self._grammar = grammar
        self._budget = budget
        self._one = np.zeros((vocab_size + 31) // 32, dtype=np.uint32)

    @property
    def forced_token(self) -> int | None:
        """The only token that may come next, whatever the sampling options say; None if they decide."""
        return None if self._budget is None else self._budget.forced_token

    @property
    def finished(self) -> bool:
        """Whether the grammar is complete and nothing can follow."""
        return self._grammar is not None and self._grammar.finished

    @property
    def restricts(self) -> bool:
        """Whether the next token has a mask."""
        return self._grammar is not None or self.forced_token is not None

    def mask(self) -> NDArray[np.uint32]:
        """Bits of the tokens that may come next, uint32 [ceil(vocab_size / 32)], where `restricts` says so."""
        token_id = self.forced_token
        if token_id is not None:
            return single_token(self._one, token_id)
        assert self._grammar is not None
        return self._grammar.mask()

    def push(self, token_id: int) -> None:
        """Go on by the token that was drawn."""
        if self._grammar is not None:
            self._grammar.push(token_id)
        if self._budget is not None:
            self._budget.push(token_id)
            if self._budget.is_over:
                self._budget = None


def single_token(words: NDArray[np.uint32], token_id: int) -> NDArray[np.uint32]:
    """The mask, written into `words`, that allows `token_id` only."""
    words.fill(0)
    words[token_id // 32] = np.uint32(1 << token_id % 32)
    return words
