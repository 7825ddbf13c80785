"""How much a model may think: the `reasoning` option of `chat`."""

from __future__ import annotations

from typing import Final, Literal

Reasoning = bool | int | Literal["low", "medium", "high"]

# Tokens of the think block. "high" is more than most answers use; True sets no limit.
BUDGETS: Final = {"low": 1024, "medium": 4096, "high": 16384}


def read_reasoning(reasoning: Reasoning | None) -> tuple[bool | None, int | None]:
    """(enable_thinking of the template, thinking_token_budget) for the option; None leaves it to the checkpoint.

    Raises TypeError and ValueError for anything else than a bool, a number of tokens, "low", "medium" or "high".
    """
    if reasoning is None or isinstance(reasoning, bool):
        return reasoning, None
    if isinstance(reasoning, int):
        if reasoning < 0:
            raise ValueError(f"reasoning is {reasoning} tokens; it must be at least 0, which turns thinking off")
        return (True, reasoning) if reasoning else (False, None)
    if not isinstance(reasoning, str):
        raise TypeError(f"reasoning must be a bool, a number of tokens or a word, not {reasoning!r}")
    if reasoning not in BUDGETS:
        raise ValueError(f"reasoning is {reasoning!r}; it must be one of {', '.join(map(repr, BUDGETS))}")
    return True, BUDGETS[reasoning]
