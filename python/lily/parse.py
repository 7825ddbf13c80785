"""Splits the text of an answer into reasoning, content and tool calls, one piece at a time."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from .arguments import ArgumentTypes
from .calls import OPEN, CallReader, JsonCall, XmlCall, overlap, read_head
from .outputs import ToolCallDelta

_THINK_OPEN: Final = "<think>"
_THINK_CLOSE: Final = "</think>"


@dataclass(frozen=True, slots=True)
class Piece:
    """What became certain with a piece of text."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class ReplyParser:
    """Reasoning up to `</think>`, then content with tool calls. Any split of the text gives the same result.

    inside: the prompt has opened the think block already. Otherwise a block counts only at the very start of the text.
    tools: parameters (JSON schema) of each tool by name; None leaves `<tool_call>` in the text as it is.

    White space around the reasoning, before the content that follows it and around calls belongs to the format and is
    left out. A call in the think block counts if a tool has its name. A call that the end of the text cuts short has
    the arguments that were there, closed to valid JSON; without a complete name it stays text.
    """

    def __init__(
        self,
        *,
        inside: bool,
        tools: Mapping[str, Mapping[str, object] | None] | None = None,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self.inside = inside  # the think block
        self.num_calls = 0
        self._tools = tools
        self._new_id = new_id
        self._text = ""
        self._at_start = not inside  # an opening tag may still come
        self._skip_space = inside  # white space at the start of a part
        self._space = ""  # white space that is dropped if the part or a call ends or starts here
        self._has_content = False
        self._call: CallReader | None = None
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._deltas: list[ToolCallDelta] = []

    def push(self, text: str) -> Piece:
        """Add text; returns what is certain now."""
        return self._run(text, final=False)

    def flush(self) -> Piece:
        """The text ends here; returns what was held back."""
        return self._run("", final=True)

    def _run(self, text: str, *, final: bool) -> Piece:
        self._text += text
        while self._in_call(final) if self._call is not None else self._in_text(final):
            pass
        if final and not self.inside and not self.num_calls:
            self._content.append(self._space)
        piece = Piece("".join(self._reasoning), "".join(self._content), tuple(self._deltas))
        for part in (self._reasoning, self._content, self._deltas):
            part.clear()
        return piece

    def _in_call(self, final: bool) -> bool:
        """One step inside a call; False if more text is needed."""
        assert self._call is not None
        text, self._text = self._text, ""
        arguments, rest = self._call.push(text, final=final)
        self._add_arguments(arguments)
        if rest is None:
            return False
        self._call, self._text = None, rest
        return True

    def _in_text(self, final: bool) -> bool:
        """One step outside of calls; False if more text is needed."""
        if self._at_start and not self._find_start(final):
            return False
        text = self._text
        tags = [_THINK_CLOSE] * self.inside + [OPEN] * (self._tools is not None)
        found = [(at, tag) for tag in tags if (at := text.find(tag)) >= 0]
        if not found:
            held = 0 if final else max((overlap(text, tag) for tag in tags), default=0)
            self._add_text(text[: len(text) - held])
            self._text = text[len(text) - held :]
            return False
        at, tag = min(found)
        self._add_text(text[:at])
        self._text = text[at:]
        if tag == OPEN:
            return self._start_call(final)
        self.inside, self._skip_space, self._space = False, True, ""
        self._text = self._text.removeprefix(tag)
        return True

    def _find_start(self, final: bool) -> bool:
        """Look for the opening tag of a think block; False if more text must decide."""
        start = self._text.lstrip()
        if len(start) < len(_THINK_OPEN) and _THINK_OPEN.startswith(start) and not final:
            return False
        self._at_start = False
        if start.startswith(_THINK_OPEN):
            self.inside = self._skip_space = True
            self._text = start.removeprefix(_THINK_OPEN)
        return True

    def _start_call(self, final: bool) -> bool:
        """At a `<tool_call>`; False if more text must decide whether it starts a call."""
        assert self._tools is not None
        head = read_head(self._text, final=final)
        if head == "more":
            return False
        if head == "none" or (self.inside and head.name not in self._tools):
            self._add_text(OPEN)
            self._text = self._text.removeprefix(OPEN)
            return True
        self._text = self._text[head.end :]
        self._space, self._skip_space = "", not self.inside and not self._has_content
        self._deltas.append(ToolCallDelta(index=self.num_calls, id=self._new_id(), name=head.name))
        self.num_calls += 1
        if head.arguments is not None:
            self._add_arguments(head.arguments)
        else:
            self._call = (XmlCall if head.is_xml else JsonCall)(ArgumentTypes(self._tools.get(head.name)))
        return True

    def _add_arguments(self, arguments: str) -> None:
        if not arguments:
            return
        index = self.num_calls - 1
        if self._deltas and self._deltas[-1].index == index:
            last = self._deltas.pop()
            self._deltas.append(replace(last, arguments=last.arguments + arguments))
        else:
            self._deltas.append(ToolCallDelta(index=index, arguments=arguments))

    def _add_text(self, text: str) -> None:
        text = self._space + text
        if self._skip_space:
            text = text.lstrip()
            self._skip_space = not text
        # Before the end of the reasoning and around calls white space is format; elsewhere it is content at once.
        certain = text.rstrip() if self.inside or self._tools is not None else text
        self._space = text[len(certain) :]
        if self.inside:
            self._reasoning.append(certain)
        elif certain:
            self._has_content = True
            self._content.append(certain)
