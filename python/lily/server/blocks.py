"""What the forms of typed events have in common: an answer of blocks (or items), of which at most the last is open."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from ..engine import Engine
from ..outputs import ChatChunk, TokenLogprob, ToolCallDelta
from ..stream import ChatStream
from .form import Conversation, Form, start_chat
from .schemas import JsonObject

ConversationT = TypeVar("ConversationT", bound=Conversation)


class BlockForm(Form[ConversationT, ChatChunk]):
    """Collects events; `delta` and others take those that have come since."""

    def __init__(self, request: ConversationT, id: str, model: str) -> None:
        super().__init__(request, id, model)
        self._blocks: list[JsonObject] = []
        self._parts: list[str] = []  # text of the open block
        self._is_open = False
        self._events: list[bytes] = []

    def start(self, engine: Engine, on_item: Callable[[], None]) -> ChatStream:
        return start_chat(engine, self._request, on_item)

    def delta(self, items: Sequence[ChatChunk]) -> bytes:
        for item in items:
            self._last = item
            # The rest of a call that is open belongs to it, so it comes before text, which opens the next block.
            calls = item.tool_calls
            first_new = next((place for place, delta in enumerate(calls) if delta.id is not None), len(calls))
            for delta in calls[:first_new]:
                self._add_call(delta)
            if item.reasoning:
                self._add_reasoning(item.reasoning)
            if item.content:
                self._add_content(item.content, item.logprob)
            for delta in calls[first_new:]:
                self._add_call(delta)
        return self._take()

    @abstractmethod
    def _add_reasoning(self, text: str) -> None: ...

    @abstractmethod
    def _add_content(self, text: str, entry: TokenLogprob | None) -> None: ...

    @abstractmethod
    def _add_call(self, delta: ToolCallDelta) -> None: ...

    def _continues(self, kind: str) -> bool:
        return self._is_open and self._blocks[-1]["type"] == kind

    def _take(self) -> bytes:
        events, self._events = b"".join(self._events), []
        return events
