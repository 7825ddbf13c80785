"""A conversation rendered turn by turn, so that earlier turns never change.

Templates of the family render an answer differently once a new question follows: they drop its think block. Each turn
then changes text that was already computed, and a cached prefix is lost. Here the template is asked for one turn at a
time, always behind the same short context, and the turns are joined: every turn looks as it did when it was generated,
whatever follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from .errors import ChatTemplateError
from .messages import TemplateMessage

# The context of single turns. Templates look for the last question, which is this one.
_QUESTION: Final[TemplateMessage] = {"role": "user", "content": "question"}
_ANSWER: Final[TemplateMessage] = {
    "role": "assistant",
    "content": "answer",
    "reasoning": "thought",
    "reasoning_content": "thought",
}

# Conversations with one question, which templates render in the same way by turns and as a whole.
_CALL: Final = {"type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
_TOOLS: Final[list[object]] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
_SAMPLES: Final[list[tuple[list[TemplateMessage], object]]] = [
    ([_QUESTION], None),
    ([{"role": "system", "content": "rules"}, _QUESTION, _ANSWER], None),
    (
        [
            {"role": "system", "content": "rules"},
            _QUESTION,
            {**_ANSWER, "tool_calls": [_CALL, _CALL]},
            {"role": "tool", "content": "one"},
            {"role": "tool", "content": "two"},
        ],
        _TOOLS,
    ),
]


class Render(Protocol):
    """What a template makes of all messages at once."""

    def __call__(
        self, messages: Sequence[TemplateMessage], tools: object = None, *, add_generation_prompt: bool = False
    ) -> str: ...


class Turns:
    """The turns that one template makes, with one set of options."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._question = render([_QUESTION])
        self._answer: str | None = None  # behind the question; most conversations have no tools
        self._question_turn = _without_prefix(render([_QUESTION, _QUESTION]), self._question)

    def conversation(self, messages: Sequence[TemplateMessage], tools: object, *, num_merged: int = 0) -> str:
        """Head, then turn after turn.

        num_merged: messages that became a part of the first one. Raises ChatTemplateError with the caller's index of
        the message that the template refuses.
        """
        has_system = messages[0]["role"] == "system"
        turns = [self._head(messages[:has_system], tools)]
        at = int(has_system)
        while at < len(messages):
            role, end = str(messages[at]["role"]), at + 1
            while role == "tool" and end < len(messages) and messages[end]["role"] == "tool":
                end += 1  # results of parallel calls share a turn
            try:
                turns.append(self._turn(role, messages[at:end]))
            except ChatTemplateError as error:
                index = at + num_merged
                raise ChatTemplateError(f"message {index} ({role}): {error}", message_index=index, role=role) from error
            at = end
        return "".join(turns)

    def generation_prompt(self) -> str:
        return _without_prefix(self._render([_QUESTION], add_generation_prompt=True), self._question)

    def _head(self, system: Sequence[TemplateMessage], tools: object = None) -> str:
        """All that stands before the first question."""
        return _without_suffix(self._render([*system, _QUESTION], tools), self._question_turn)

    def _turn(self, role: str, messages: Sequence[TemplateMessage]) -> str:
        if role == "system":
            # As at the start of a conversation: some templates refuse one later.
            return self._head(messages).removeprefix(self._head([]))
        if role != "tool":
            return _without_prefix(self._render([_QUESTION, *messages]), self._question)
        if self._answer is None:
            self._answer = self._render([_QUESTION, _ANSWER])
        return _without_prefix(self._render([_QUESTION, _ANSWER, *messages]), self._answer)


def why_not_by_turns(render: Render) -> str | None:
    """Why this template must render whole conversations; None if it can be asked for single turns."""
    for messages, tools in _SAMPLES:
        try:
            whole = render(messages, tools, add_generation_prompt=True)
        except ChatTemplateError:
            continue  # a template without a system or tool role
        try:
            turns = Turns(render)
            if turns.conversation(messages, tools) + turns.generation_prompt() != whole:
                return "a message looks different behind others"
        except ChatTemplateError as error:
            return str(error)
    return None


def _without_prefix(text: str, prefix: str) -> str:
    if not text.startswith(prefix):
        raise ChatTemplateError("the template renders a message differently when another one follows")
    return text[len(prefix) :]


def _without_suffix(text: str, suffix: str) -> str:
    if not text.endswith(suffix):
        raise ChatTemplateError("the template renders the first question differently from a later one")
    return text[: len(text) - len(suffix)]
