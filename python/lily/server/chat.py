"""POST /v1/chat/completions, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from ..engine import Engine
from ..outputs import ChatChunk, ToolCallDelta
from ..params import SamplingParams
from ..planner import ChatOptions
from ..stream import ChatStream, fold_chat
from .chunks import ChunkForm, logprob
from .errors import unsupported
from .form import start_chat
from .run import Run
from .schemas import ChatFields, JsonObject, ReasoningEffort

MESSAGES_SCHEMA: JsonObject = {
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
            "content": {
                "anyOf": [
                    {"type": "string"},
                    {"type": "null"},
                    {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["type", "text"],
                            "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                        },
                    },
                ]
            },
            "reasoning_content": {"type": ["string", "null"]},
            "reasoning": {"type": ["string", "null"]},
            "tool_calls": {"type": ["array", "null"], "items": {"type": "object"}},
            "tool_call_id": {"type": "string"},
        },
    },
}

Messages = Annotated[list[JsonObject], Meta(extra_json_schema=MESSAGES_SCHEMA)]


class ChatRequest(ChatFields, kw_only=True):
    messages: Messages
    response_format: JsonObject | None = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: ReasoningEffort | None = None
    modalities: list[str] | None = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None

    def check(self) -> None:
        """Raises ApiError for fields that are known, but would be ignored."""
        if self.functions is not None or self.function_call is not None:
            raise unsupported("functions", "functions and function_call are not supported; use tools and tool_choice")
        if self.modalities not in (None, ["text"]) or self.audio is not None:
            raise unsupported("modalities", "only text can be read and written")
        for name in ("prediction", "web_search_options"):
            if getattr(self, name) is not None:
                raise unsupported(name, f"{name} is not supported")

    def chat_messages(self) -> list[Any]:
        return chat_messages(self.messages)

    def chat_options(self) -> ChatOptions:
        return self.options(self.tools, self.tool_choice, self.response_format, self.reasoning_effort)

    def params(self) -> SamplingParams:
        if self.max_completion_tokens is not None and self.max_tokens not in (None, self.max_completion_tokens):
            raise ValueError("max_tokens and max_completion_tokens mean the same, but differ")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self.sampling_params(max_tokens=self.max_completion_tokens, logprobs=logprobs)


def chat_messages(messages: Sequence[JsonObject]) -> list[Any]:
    """The messages as the engine reads them: an answer without content has an empty one."""
    return [
        {**message, "content": ""} if message.get("role") == "assistant" and message.get("content") is None else message
        for message in messages
    ]


class ChatForm(ChunkForm[ChatRequest, ChatChunk]):
    route = "/v1/chat/completions"
    id_prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    no_text: ClassVar[JsonObject] = {"delta": {}}

    @property
    def field_names(self) -> Mapping[str, str]:
        names = {"logprobs": "top_logprobs"}
        if self._request.max_completion_tokens is not None:
            names["max_tokens"] = "max_completion_tokens"
        return names

    def start(self, engine: Engine, on_item: Callable[[], None]) -> ChatStream:
        return start_chat(engine, self._request, on_item)

    def whole(self, items: Sequence[ChatChunk]) -> object:
        reply = fold_chat(items)
        message: JsonObject = {"role": "assistant", "content": reply.content, "refusal": None}
        if reply.reasoning is not None:
            message["reasoning_content"] = message["reasoning"] = reply.reasoning
        if reply.tool_calls:
            message["content"] = reply.content or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
                for call in reply.tool_calls
            ]
        choice: JsonObject = {
            "message": message,
            "logprobs": None
            if reply.logprobs is None
            else {"content": [*map(logprob, reply.logprobs)], "refusal": None},
            "finish_reason": reply.finish_reason,
        }
        return self._whole("chat.completion", choice, reply.usage, reply.timing)

    def begin(self, run: Run[ChatChunk]) -> bytes:
        return self._chunk({"delta": {"role": "assistant", "content": ""}})

    def _event(self, item: ChatChunk) -> bytes:
        delta: JsonObject = {}
        if item.reasoning:
            delta["reasoning_content"] = delta["reasoning"] = item.reasoning
        if item.content:
            delta["content"] = item.content
        if item.tool_calls:
            delta["tool_calls"] = [*map(_call_delta, item.tool_calls)]
        found = None if item.logprob is None else {"content": [logprob(item.logprob)], "refusal": None}
        return self._chunk({"delta": delta}, logprobs=found) if delta or found else b""


def _call_delta(delta: ToolCallDelta) -> JsonObject:
    if delta.id is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}
