"""POST /v1/responses, in the form of Open Responses: typed items in, typed items and events out. Nothing is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from time import time
from typing import Any, Final

import msgspec

from ..outputs import ChatChunk, TokenLogprob, ToolCallDelta, Usage
from ..params import SamplingParams
from ..planner import ChatOptions
from .blocks import BlockForm
from .chunks import logprob
from .errors import ApiError, invalid, unsupported, without_text
from .reply import named_sse
from .run import Run
from .schemas import ChatFields, JsonObject, ReasoningEffort

_FIELD_NAMES: Final = {
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "messages": "input",
    "response_format": "text.format",
}
_ROLES: Final = ("user", "assistant", "system", "developer")
_TEXT_PARTS: Final = ("input_text", "output_text", "text")


class ReasoningOptions(msgspec.Struct, kw_only=True):
    effort: ReasoningEffort | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextOptions(msgspec.Struct, kw_only=True):
    format: JsonObject | None = None
    verbosity: str | None = None


class ResponsesRequest(ChatFields, kw_only=True):
    input: str | list[JsonObject]
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    truncation: str | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    prompt: Any = None

    def check(self) -> None:
        """Raises ApiError for fields that are known, but would be ignored."""
        for name in ("previous_response_id", "conversation", "prompt"):
            if getattr(self, name) is not None:
                raise unsupported(name, f"{name} is not supported: nothing is stored here; send the whole input")
        if self.background:
            raise unsupported("background", "background is not supported; use stream")
        if self.truncation not in (None, "disabled"):
            raise unsupported("truncation", f"truncation is {self.truncation!r}; an input is never truncated here")
        if self.max_tool_calls is not None:
            raise unsupported("max_tool_calls", "max_tool_calls is not supported; see parallel_tool_calls")

    @property
    def wants_logprobs(self) -> bool:
        return self.top_logprobs is not None or "message.output_text.logprobs" in (self.include or [])

    def params(self) -> SamplingParams:
        logprobs = (self.top_logprobs or 0) if self.wants_logprobs else None
        return self.sampling_params(max_tokens=self.max_output_tokens, logprobs=logprobs)

    def chat_tools(self) -> list[JsonObject] | None:
        """The tools in the form of chats."""
        tools = []
        for index, tool in enumerate(self.tools or []):
            if tool.get("type") != "function":
                raise unsupported(f"tools[{index}].type", f"tools of type {tool.get('type')!r} are not supported")
            names = ("name", "description", "parameters", "strict")
            # The form's own default for `strict` is null here, and a schema may be null too.
            function = {name: tool[name] for name in names if tool.get(name) is not None}
            tools.append({"type": "function", "function": function})
        return tools or None

    def chat_tool_choice(self) -> str | JsonObject | None:
        choice = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") == "function" and "function" not in choice:
            return {"type": "function", "function": {"name": choice.get("name")}}
        return choice

    def response_format(self) -> JsonObject | None:
        """`text.format` in the form of chats."""
        form = self.text.format if self.text is not None else None
        if form is None or form.get("type") != "json_schema":
            return form
        return {"type": "json_schema", "json_schema": {key: value for key, value in form.items() if key != "type"}}

    def chat_options(self) -> ChatOptions:
        effort = self.reasoning.effort if self.reasoning is not None else None
        return self.options(self.chat_tools(), self.chat_tool_choice(), self.response_format(), effort)

    def chat_messages(self) -> list[Any]:
        """The conversation in the form of chats. Raises ApiError for items that are not supported."""
        messages: list[Any] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        history = _History(messages)
        for index, item in enumerate(self.input):
            history.add(f"input[{index}]", item)
        return history.messages


class _History:
    """Items, some of which together are one answer of the assistant: its reasoning, its text and its calls."""

    def __init__(self, messages: list[Any]) -> None:
        self.messages = messages

    def add(self, where: str, item: JsonObject) -> None:
        kind = item.get("type", "message")
        if kind == "message":
            role = item.get("role")
            if role not in _ROLES:
                raise invalid(where, f"{where} has the role {role!r}; known are {', '.join(_ROLES)}")
            text = _text(f"{where}.content", item.get("content"))
            if role != "assistant":
                self.messages.append({"role": role, "content": text})
                return
            answer = self._answer(lambda last: not last["content"] and "tool_calls" not in last)
            answer["content"] = text
        elif kind == "reasoning":
            thought = "".join(_thought(where, item.get(key)) for key in ("content", "summary"))
            answer = self._answer(lambda last: False)
            if thought:
                answer["reasoning_content"] = thought
        elif kind == "function_call":
            name, arguments = item.get("name"), item.get("arguments")
            if not isinstance(name, str) or not isinstance(arguments, str):
                raise invalid(where, f"{where}: a function_call needs name and arguments, both text")
            call = {"type": "function", "function": {"name": name, "arguments": arguments}, "id": item.get("call_id")}
            self._answer(lambda last: True).setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = _text(f"{where}.output", item.get("output"))
            self.messages.append({"role": "tool", "content": output, "tool_call_id": item.get("call_id")})
        else:
            raise unsupported(where, f"{where}: items of type {kind!r} are not supported")

    def _answer(self, continues: Callable[[JsonObject], bool]) -> JsonObject:
        """The running answer if `continues` says that it goes on, or a new one."""
        last: JsonObject | None = self.messages[-1] if self.messages else None
        if last is not None and last["role"] == "assistant" and continues(last):
            return last
        self.messages.append({"role": "assistant", "content": ""})
        answer: JsonObject = self.messages[-1]
        return answer


def _thought(where: str, parts: object) -> str:
    if parts is not None and not isinstance(parts, list):
        raise invalid(where, f"{where}: the content and the summary of a reasoning item are lists of parts")
    return "".join(part["text"] for part in parts or [] if isinstance(part, dict) and isinstance(part.get("text"), str))


def _text(where: str, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(where, f"{where} needs text or a list of parts, not {type(content).__name__}")
    texts = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in _TEXT_PARTS:
            raise unsupported(where, f"{where} holds a part of type {kind!r}; only text is supported")
        if not isinstance(part.get("text"), str):
            raise without_text(f"{where}[{place}]", part)
        texts.append(part["text"])
    return "".join(texts)


class ResponsesForm(BlockForm[ResponsesRequest]):
    """The blocks are items of the output."""

    route = "/v1/responses"
    id_prefix = "resp_"

    def __init__(self, request: ResponsesRequest, id: str, model: str) -> None:
        super().__init__(request, id, model)
        self._logprobs: list[JsonObject] = []  # of the open item
        self._sequence = 0

    @property
    def field_names(self) -> Mapping[str, str]:
        return _FIELD_NAMES

    def whole(self, items: Sequence[ChatChunk]) -> object:
        self.delta(items)
        self._close_last()
        return self._response()

    def begin(self, run: Run[ChatChunk]) -> bytes:
        for name in ("response.created", "response.in_progress"):
            self._emit(name, response=self._response())
        return self._take()

    def end(self) -> bytes:
        self._close_last()
        response = self._response()
        self._emit(f"response.{response['status']}", response=response)
        return self._take()

    def failed(self, error: ApiError, request_id: str) -> bytes:
        code = "server_error" if error.status >= 500 else "invalid_prompt"
        response = {**self._response(), "status": "failed", "error": {"code": code, "message": error.message}}
        self._emit("response.failed", response=response)
        return self._take()

    # Items: at most the last one is open.

    def _add_reasoning(self, text: str) -> None:
        if not self._continues("reasoning"):
            self._open({"id": _id("rs"), "type": "reasoning", "summary": [], "content": []})
            self._emit_part("added", {"type": "reasoning_text", "text": ""})
        self._parts.append(text)
        self._emit_item("response.reasoning_text.delta", content_index=0, delta=text)

    def _add_content(self, text: str, entry: TokenLogprob | None) -> None:
        if not self._continues("message"):
            self._open({"id": _id("msg"), "type": "message", "role": "assistant", "content": []})
            self._emit_part("added", {"type": "output_text", "text": "", "annotations": [], "logprobs": []})
        found = [] if entry is None else [logprob(entry)]
        self._parts.append(text)
        self._logprobs += found
        self._emit_item("response.output_text.delta", content_index=0, delta=text, logprobs=found)

    def _add_call(self, delta: ToolCallDelta) -> None:
        if delta.id is not None:
            item = {"id": _id("fc"), "type": "function_call", "call_id": delta.id, "name": delta.name, "arguments": ""}
            self._open(item)
        if delta.arguments:
            self._parts.append(delta.arguments)
            self._emit_item("response.function_call_arguments.delta", delta=delta.arguments)

    def _open(self, item: JsonObject) -> None:
        self._close("completed")
        self._is_open = True
        self._blocks.append({**item, "status": "in_progress"})
        self._emit("response.output_item.added", output_index=len(self._blocks) - 1, item=self._blocks[-1])

    def _close_last(self) -> None:
        assert self._last is not None
        if not self._blocks:
            self._add_content("", None)  # an answer is at least an empty message
        self._close("incomplete" if self._last.finish_reason == "length" else "completed")

    def _close(self, status: str) -> None:
        if not self._is_open:
            return
        item, text = self._blocks[-1], "".join(self._parts)
        if item["type"] == "function_call":
            item["arguments"] = text
            self._emit_item("response.function_call_arguments.done", name=item["name"], arguments=text)
        elif item["type"] == "reasoning":
            part: JsonObject = {"type": "reasoning_text", "text": text}
            item["content"] = [part]
            self._emit_item("response.reasoning_text.done", content_index=0, text=text)
            self._emit_part("done", part)
        else:
            part = {"type": "output_text", "text": text, "annotations": [], "logprobs": self._logprobs}
            item["content"] = [part]
            self._emit_item("response.output_text.done", content_index=0, text=text, logprobs=self._logprobs)
            self._emit_part("done", part)
        item["status"] = status
        self._emit("response.output_item.done", output_index=len(self._blocks) - 1, item=item)
        self._is_open, self._parts, self._logprobs = False, [], []

    # Events

    def _emit(self, event: str, /, **fields: object) -> None:
        self._events.append(named_sse(event, {"type": event, "sequence_number": self._sequence, **fields}))
        self._sequence += 1

    def _emit_item(self, event: str, /, **fields: object) -> None:
        self._emit(event, item_id=self._blocks[-1]["id"], output_index=len(self._blocks) - 1, **fields)

    def _emit_part(self, what: str, part: JsonObject) -> None:
        self._emit_item(f"response.content_part.{what}", content_index=0, part=part)

    def _response(self) -> JsonObject:
        request, last = self._request, self._last
        usage = last.usage if last is not None else None
        is_cut = last is not None and last.finish_reason == "length"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time()) if usage is not None and not is_cut else None,
            "status": "in_progress" if usage is None else "incomplete" if is_cut else "completed",
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": self._model,
            "output": self._blocks,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": request.prompt_cache_key,
            "reasoning": {"effort": request.reasoning.effort if request.reasoning else None, "summary": None},
            "store": False,
            "temperature": request.temperature,
            "text": {"format": (request.text.format if request.text else None) or {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
        }


def _usage(usage: Usage) -> JsonObject:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _id(prefix: str) -> str:
    return f"{prefix}_{token_hex(12)}"
