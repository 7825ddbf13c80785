"""POST /v1/chat/completions, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Annotated, Any

from msgspec import Meta

from ..engine import Engine
from ..outputs import ChatChunk, Timing, TokenLogprob, ToolCallDelta, Usage
from ..params import SamplingParams
from ..progress import Progress
from ..stream import ChatStream, fold_chat
from .answer import Form
from .errors import ApiError, unsupported
from .reply import DONE, sse
from .run import Run
from .schemas import JsonObject, ReasoningEffort, SamplingFields, TemplateOptions, reasoning_option

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


class ChatRequest(SamplingFields, kw_only=True):
    messages: Messages
    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    response_format: JsonObject | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: ReasoningEffort | None = None
    chat_template_kwargs: TemplateOptions | None = None
    enable_thinking: bool | None = None
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


@dataclass(slots=True)
class ChatForm(Form[ChatChunk]):
    route = "/v1/chat/completions"

    request: ChatRequest
    id: str
    model: str
    created: int = field(default_factory=lambda: int(time()))
    _last: ChatChunk | None = None

    @property
    def wants_stream(self) -> bool:
        return bool(self.request.stream)

    def start(self, engine: Engine, on_item: Callable[[], None]) -> ChatStream:
        request = self.request
        request.check()
        return engine._chat_stream(
            chat_messages(request.messages),
            on_item,
            tools=request.tools,  # type: ignore[arg-type]  # checked by the engine, as the next two
            tool_choice=request.tool_choice,  # type: ignore[arg-type]
            parallel_tool_calls=request.parallel_tool_calls is not False,
            response_format=request.response_format,  # type: ignore[arg-type]
            reasoning=reasoning_option(request.reasoning_effort, request.enable_thinking, request.chat_template_kwargs),
            params=request.params(),
        )

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
            "index": 0,
            "message": message,
            "logprobs": None
            if reply.logprobs is None
            else {"content": [*map(logprob, reply.logprobs)], "refusal": None},
            "finish_reason": reply.finish_reason,
        }
        body = {**self._head("chat.completion"), "choices": [choice], "usage": usage(reply.usage)}
        if self.request.timings:
            body["timings"] = timings(reply.usage, reply.timing)
        return body

    def begin(self, run: Run[ChatChunk]) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def progress(self, progress: Progress, cached_tokens: int, seconds: float) -> bytes:
        if not self.request.return_progress:
            return b""
        return self._chunk({}, prompt_progress=prompt_progress(progress, cached_tokens, seconds))

    def delta(self, items: Sequence[ChatChunk]) -> bytes:
        return b"".join(map(self._events, items))

    def _events(self, item: ChatChunk) -> bytes:
        self._last = item
        delta: JsonObject = {}
        if item.reasoning:
            delta["reasoning_content"] = delta["reasoning"] = item.reasoning
        if item.content:
            delta["content"] = item.content
        if item.tool_calls:
            delta["tool_calls"] = [*map(_call_delta, item.tool_calls)]
        found = None if item.logprob is None else {"content": [logprob(item.logprob)], "refusal": None}
        return self._chunk(delta, logprobs=found) if delta or found else b""

    def end(self) -> bytes:
        last = self._last
        assert last is not None and last.usage is not None and last.timing is not None
        extra: JsonObject = {"timings": timings(last.usage, last.timing)} if self.request.timings else {}
        out = self._chunk({}, finish_reason=last.finish_reason, **extra)
        if self.request.includes_usage:
            out += sse({**self._head("chat.completion.chunk"), "choices": [], "usage": usage(last.usage), **extra})
        return out + DONE

    def failed(self, error: ApiError, request_id: str) -> bytes:
        return sse({"error": error.openai()})

    def _head(self, kind: str) -> JsonObject:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chunk(
        self, delta: JsonObject, *, logprobs: object = None, finish_reason: str | None = None, **extra: object
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return sse({**self._head("chat.completion.chunk"), "choices": [choice], **extra})


def _call_delta(delta: ToolCallDelta) -> JsonObject:
    if delta.id is None:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    function = {"name": delta.name, "arguments": delta.arguments}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}


def logprob(entry: TokenLogprob) -> JsonObject:
    """A token in OpenAI's form. JSON has no -inf: OpenAI writes -9999 for a token that could not be drawn."""
    return {**_logprob_head(entry), "top_logprobs": [*map(_logprob_head, entry.top_logprobs)]}


def _logprob_head(entry: TokenLogprob) -> JsonObject:
    return {"token": entry.token, "logprob": max(entry.logprob, -9999.0), "bytes": [*entry.bytes]}


def usage(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings(usage: Usage, timing: Timing) -> JsonObject:
    """Under llama-server's names: milliseconds, and tokens per second without those from the cache."""
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": usage.prompt_tokens - usage.cached_tokens,
        "prompt_ms": 1000 * timing.prefill_seconds,
        "prompt_per_second": timing.prefill_tokens_per_second,
        "predicted_n": usage.completion_tokens,
        "predicted_ms": 1000 * timing.decode_seconds,
        "predicted_per_second": timing.decode_tokens_per_second,
    }


def prompt_progress(progress: Progress, cached_tokens: int, seconds: float) -> JsonObject:
    """Under llama-server's names. processed: tokens that are computed or cached, of `total`."""
    return {
        "total": progress.total,
        "cache": cached_tokens,
        "processed": progress.done,
        "time_ms": round(1000 * seconds),
    }
