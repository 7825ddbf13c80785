"""POST /v1/messages and /v1/messages/count_tokens, in Anthropic's form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec

from ..engine import Engine
from ..outputs import ChatChunk, TokenLogprob, ToolCallDelta, Usage
from ..params import SamplingParams
from ..planner import ChatOptions
from ..reasoning import Reasoning
from .billing import without_billing_lines
from .blocks import BlockForm
from .errors import ApiError, invalid, unsupported, without_text
from .reply import named_sse
from .run import Run
from .schemas import Fields, JsonObject, ReasoningEffort, TemplateOptions, reasoning_option

_FIELD_NAMES: Final = {"stop": "stop_sequences", "reasoning": "thinking.budget_tokens"}
_STOP_REASONS: Final = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}


class Thinking(msgspec.Struct, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class ToolChoiceField(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: ReasoningEffort | None = None
    format: JsonObject | None = None


class CountRequest(Fields, kw_only=True):
    """The fields of a request that make its prompt."""

    messages: list[JsonObject]
    system: str | list[JsonObject] | None = None
    tools: list[JsonObject] | None = None
    tool_choice: ToolChoiceField | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonObject | None = None
    chat_template_kwargs: TemplateOptions | None = None
    enable_thinking: bool | None = None
    mcp_servers: list[JsonObject] | None = None
    container: Any = None

    def check(self) -> None:
        """Raises ApiError for fields that are known, but would be ignored."""
        for name in ("mcp_servers", "container"):
            if getattr(self, name):
                raise unsupported(name, f"{name} is not supported")

    def reasoning(self) -> Reasoning | None:
        """Without `thinking` there is none, as Anthropic defines it, unless the template's own options ask for it."""
        thinking, options = self.thinking, self.chat_template_kwargs
        wants = self.enable_thinking if options is None or options.enable_thinking is None else options.enable_thinking
        if thinking is None or thinking.type == "disabled":
            return bool(reasoning_option(None, wants, options))
        if wants is False:
            return False
        reasoning_option(None, wants, options)
        if thinking.type == "enabled":
            if thinking.budget_tokens is None:
                raise invalid("thinking.budget_tokens", "thinking of type 'enabled' needs budget_tokens")
            return thinking.budget_tokens
        return reasoning_option(self.output_config.effort if self.output_config else None, True, None)

    def chat_messages(self) -> list[Any]:
        """The conversation in the form of chats. Raises ApiError for blocks that are not supported."""
        messages: list[Any] = []
        system = without_billing_lines(self._system())
        if system:
            messages.append({"role": "system", "content": system})
        for index, message in enumerate(self.messages):
            _Turn(f"messages[{index}]", message).append_to(messages)
        if messages and messages[-1]["role"] == "assistant":
            raise unsupported(
                f"messages[{len(self.messages) - 1}]",
                "the last message is from the assistant; continuing its text is not supported, end with a user message",
            )
        return messages

    def _system(self) -> str:
        if self.system is None or isinstance(self.system, str):
            return self.system or ""
        # Each block is joined as a line of its own, so that a block which holds a volatile line alone leaves nothing.
        return "\n".join(_block_text(f"system[{index}]", block) for index, block in enumerate(self.system))

    def chat_tools(self) -> list[JsonObject] | None:
        tools = []
        for index, tool in enumerate(self.tools or []):
            where = f"tools[{index}]"
            if tool.get("type", "custom") not in ("custom", None):
                raise unsupported(
                    where, f"{where}: tools of type {tool['type']!r} run on a service and are not supported"
                )
            function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
            if function["parameters"] is None:
                raise invalid(where, f"{where} needs an input_schema")
            function |= {key: tool[key] for key in ("description", "strict") if tool.get(key) is not None}
            tools.append({"type": "function", "function": function})
        return tools or None

    def chat_tool_choice(self) -> str | JsonObject | None:
        choice = self.tool_choice
        if choice is None:
            return None
        if choice.type == "tool":
            return {"type": "function", "function": {"name": choice.name}}
        return "required" if choice.type == "any" else choice.type

    def response_format(self) -> JsonObject | None:
        form = self.output_format or (self.output_config.format if self.output_config is not None else None)
        if form is None:
            return None
        if form.get("type") != "json_schema" or "schema" not in form:
            raise invalid("output_config.format", "format must be {'type': 'json_schema', 'schema': {...}}")
        return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form["schema"]}}

    def count(self, engine: Engine) -> int:
        """Tokens of the prompt. Raises as the engine does."""
        self.check()
        prompt = engine.render(self.chat_messages(), tools=self.chat_tools(), reasoning=self.reasoning())  # type: ignore[arg-type]
        return len(engine.tokenize(prompt))


class MessagesRequest(CountRequest, kw_only=True):
    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: JsonObject | None = None
    service_tier: str | None = None

    def chat_options(self) -> ChatOptions:
        choice = self.tool_choice
        return {
            "tools": self.chat_tools(),  # type: ignore[typeddict-item]  # checked by the engine, as the next two
            "tool_choice": self.chat_tool_choice(),  # type: ignore[typeddict-item]
            "parallel_tool_calls": choice is None or not choice.disable_parallel_tool_use,
            "response_format": self.response_format(),  # type: ignore[typeddict-item]
            "reasoning": self.reasoning(),
        }

    def params(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens,
            stop=self.stop_sequences or (),
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
        )


class _Turn:
    """One message of Anthropic's kind, which may be several of a chat: results of tools are messages of their own."""

    def __init__(self, where: str, message: JsonObject) -> None:
        self._where = where
        self._role = message.get("role")
        content = message.get("content")
        if self._role not in ("user", "assistant", "system"):
            raise invalid(where, f"{where} has the role {self._role!r}; known are user, assistant and system")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
            raise invalid(where, f"{where} needs content: text or a list of blocks")
        self._blocks: list[JsonObject] = content

    def append_to(self, messages: list[Any]) -> None:
        if self._role == "assistant":
            messages.append(self._assistant())
            return
        texts: list[str] = []
        is_first = True
        for index, block in enumerate(self._blocks):
            where = f"{self._where}.content[{index}]"
            if block.get("type") != "tool_result":
                texts.append(_block_text(where, block))
                continue
            if self._role != "user":
                raise invalid(where, f"{where}: results of tools belong into user messages")
            if texts:
                messages.append({"role": "user", "content": "\n".join(texts)})
                texts = []
            messages.append(_tool_result(where, block))
            is_first = False
        if texts or is_first:
            messages.append({"role": self._role, "content": "\n".join(texts)})

    def _assistant(self) -> JsonObject:
        texts, thoughts, calls = [], [], []
        for index, block in enumerate(self._blocks):
            where, kind = f"{self._where}.content[{index}]", block.get("type")
            if kind == "thinking" and isinstance(block.get("thinking"), str):
                thoughts.append(block["thinking"])
            elif kind == "tool_use":
                if not isinstance(block.get("name"), str) or not isinstance(block.get("input"), dict):
                    raise invalid(where, f"{where}: a tool_use needs a name and an input, which is an object")
                function = {"name": block["name"], "arguments": block["input"]}
                calls.append({"type": "function", "id": block.get("id"), "function": function})
            else:
                texts.append(_block_text(where, block))
        answer: JsonObject = {"role": "assistant", "content": "".join(texts)}
        if thoughts:
            answer["reasoning_content"] = "".join(thoughts)
        if calls:
            answer["tool_calls"] = calls
        return answer


def _tool_result(where: str, block: JsonObject) -> JsonObject:
    content = block.get("content")
    if isinstance(content, list):
        content = "\n".join(_block_text(f"{where}.content[{index}]", part) for index, part in enumerate(content))
    if content is not None and not isinstance(content, str):
        raise invalid(where, f"{where}: the content of a tool_result is text or a list of blocks")
    text = content or ""
    return {
        "role": "tool",
        "content": f"Error: {text}" if block.get("is_error") else text,
        "tool_call_id": block.get("tool_use_id"),
    }


def _block_text(where: str, block: object) -> str:
    kind = block.get("type") if isinstance(block, dict) else type(block).__name__
    if not isinstance(block, dict) or kind != "text":
        raise unsupported(where, f"{where} is a block of type {kind!r}, which is not supported here")
    if not isinstance(block.get("text"), str):
        raise without_text(where, block)
    return str(block["text"])


class MessagesForm(BlockForm[MessagesRequest]):
    route = "/v1/messages"
    id_prefix = "msg_"
    dialect = "anthropic"
    ping = named_sse("ping", {"type": "ping"})

    @property
    def field_names(self) -> Mapping[str, str]:
        return _FIELD_NAMES

    def whole(self, items: Sequence[ChatChunk]) -> object:
        self.delta(items)
        self._close()
        last = items[-1]
        assert last.usage is not None
        return {**self._message(_usage(last.usage)), "content": self._blocks, **_stop(last)}

    def begin(self, run: Run[ChatChunk]) -> bytes:
        # How much of the prompt is cached is not known yet: the last event says it.
        message = self._message(_usage(Usage(prompt_tokens=run.prompt_tokens, completion_tokens=0)))
        return named_sse("message_start", {"type": "message_start", "message": message}) + self.ping

    def end(self) -> bytes:
        last = self._last
        assert last is not None and last.usage is not None
        self._close()
        self._emit("message_delta", delta=_stop(last), usage=_usage(last.usage))
        self._emit("message_stop")
        return self._take()

    def failed(self, error: ApiError, request_id: str) -> bytes:
        return named_sse("error", error.body("anthropic", request_id))

    # Blocks: at most the last one is open.

    def _add_reasoning(self, text: str) -> None:
        self._add("thinking", "thinking_delta", text)

    def _add_content(self, text: str, entry: TokenLogprob | None) -> None:
        self._add("text", "text_delta", text)

    def _add(self, kind: str, delta: str, text: str) -> None:
        if not self._continues(kind):
            self._open({"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {}))
        self._parts.append(text)
        self._emit_block("content_block_delta", delta={"type": delta, kind: text})

    def _add_call(self, delta: ToolCallDelta) -> None:
        if delta.id is not None:
            self._open({"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}})
        if delta.arguments:
            self._parts.append(delta.arguments)
            self._emit_block("content_block_delta", delta={"type": "input_json_delta", "partial_json": delta.arguments})

    def _open(self, block: JsonObject) -> None:
        self._close()
        self._is_open = True
        self._blocks.append(block)
        self._emit_block("content_block_start", content_block=block)

    def _close(self) -> None:
        if not self._is_open:
            return
        block, text = self._blocks[-1], "".join(self._parts)
        if block["type"] == "tool_use":
            block["input"] = json.loads(text or "{}")
        else:
            block[block["type"]] = text
        if block["type"] == "thinking":
            # Clients send a thinking block back only with a signature. Nothing is signed: it names the text.
            block["signature"] = sha256(text.encode()).hexdigest()
            self._emit_block("content_block_delta", delta={"type": "signature_delta", "signature": block["signature"]})
        self._emit_block("content_block_stop")
        self._is_open, self._parts = False, []

    # Events

    def _emit(self, name: str, **fields: object) -> None:
        self._events.append(named_sse(name, {"type": name, **fields}))

    def _emit_block(self, name: str, **fields: object) -> None:
        self._emit(name, index=len(self._blocks) - 1, **fields)

    def _message(self, usage: JsonObject) -> JsonObject:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


def _stop(last: ChatChunk) -> JsonObject:
    if last.finish_reason == "stop" and isinstance(last.stop_reason, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": last.stop_reason}
    return {"stop_reason": _STOP_REASONS[str(last.finish_reason)], "stop_sequence": None}


def _usage(usage: Usage) -> JsonObject:
    """input_tokens are those that were computed: cached ones are counted apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }
