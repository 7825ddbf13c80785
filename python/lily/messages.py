"""Chat messages and tools as OpenAI-style dicts, their checks, and the form that chat templates read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NotRequired, TypedDict

from .errors import ChatTemplateError
from .thinking import CLOSE, OPEN

ROLES: Final = ("system", "developer", "user", "assistant", "tool")


class TextPart(TypedDict):
    type: Literal["text"]
    text: str


class FunctionCall(TypedDict):
    name: str
    arguments: str | Mapping[str, object]


class ToolCallMessage(TypedDict):
    """A call inside an assistant message. `arguments` is JSON text, as OpenAI sends it, or the parsed object."""

    type: Literal["function"]
    function: FunctionCall
    id: NotRequired[str]


class InstructionMessage(TypedDict):
    role: Literal["system", "developer"]
    content: str | Sequence[TextPart]


class UserMessage(TypedDict):
    role: Literal["user"]
    content: str | Sequence[TextPart]


class AssistantMessage(TypedDict):
    """An answer of the history. `reasoning` and `reasoning_content` mean the same."""

    role: Literal["assistant"]
    content: NotRequired[str | Sequence[TextPart] | None]
    reasoning: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[Sequence[ToolCallMessage] | None]


class ToolMessage(TypedDict):
    role: Literal["tool"]
    content: str | Sequence[TextPart]
    tool_call_id: NotRequired[str]


Message = InstructionMessage | UserMessage | AssistantMessage | ToolMessage


class Function(TypedDict):
    name: str
    description: NotRequired[str]
    parameters: NotRequired[Mapping[str, object]]
    strict: NotRequired[bool]


class Tool(TypedDict):
    type: Literal["function"]
    function: Function


TemplateMessage = dict[str, object]


def template_messages(messages: Sequence[Message]) -> list[TemplateMessage]:
    """Check messages and bring them into the form that templates read. Nothing is dropped.

    Leading system and developer messages become one, later ones stay where they are, as system messages; text parts
    become one text; arguments given as JSON text become objects; reasoning is found under both names.
    Raises ChatTemplateError, naming the message, for anything else.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence) or not messages:
        is_list = isinstance(messages, Sequence) and not isinstance(messages, str)
        given = "" if is_list else f", not {type(messages).__name__}"
        raise ChatTemplateError(f"messages must be a list of at least one {{'role': ..., 'content': ...}}{given}")
    checked = [_template_message(index, message) for index, message in enumerate(messages)]
    num_leading = 0
    while num_leading < len(checked) and checked[num_leading]["role"] in ("system", "developer"):
        num_leading += 1
    if num_leading:
        texts = [str(message["content"]) for message in checked[:num_leading]]
        checked[:num_leading] = [{"role": "system", "content": "\n\n".join(texts)}]
    for message in checked:
        if message["role"] == "developer":
            message["role"] = "system"  # the name that templates know
    return checked


def with_reasoning_apart(message: TemplateMessage) -> TemplateMessage:
    """The same for templates that look for a think block in the content of an answer without `reasoning`.

    They cut the content at any `</think>`, and some drop what stands between two. Only one that begins with `<think>`
    was written so by a model; elsewhere the tag is text that the answer quotes.
    """
    content = str(message["content"])
    if message["role"] != "assistant" or "reasoning" in message or CLOSE not in content:
        return message
    thought, start = "", content.lstrip()
    if start.startswith(OPEN):
        thought, _, content = start.removeprefix(OPEN).partition(CLOSE)
        thought, content = thought.strip("\n"), content.lstrip("\n")
    return {**message, "content": content, "reasoning": thought, "reasoning_content": thought}


def _template_message(index: int, message: Message) -> TemplateMessage:
    if not isinstance(message, Mapping):
        raise ChatTemplateError(f"message {index} is a {type(message).__name__}, not a dict", message_index=index)
    role: object = message.get("role")
    if role not in ROLES:
        raise ChatTemplateError(
            f"message {index} has the role {role!r}; known are {', '.join(ROLES)}", message_index=index, role=str(role)
        )
    out: TemplateMessage = dict(message)
    has_calls = bool(message.get("tool_calls"))
    out["content"] = _text(index, str(role), message.get("content"), required=role != "assistant" or not has_calls)
    if role != "assistant":
        return out
    thoughts = [text for name in ("reasoning", "reasoning_content") if (text := message.get(name)) is not None]
    out.pop("reasoning", None)
    out.pop("reasoning_content", None)
    if thoughts:
        if not all(isinstance(text, str) and text == thoughts[0] for text in thoughts):
            raise ChatTemplateError(
                f"message {index}: reasoning must be one text; reasoning and reasoning_content differ",
                message_index=index,
                role="assistant",
            )
        out["reasoning"] = out["reasoning_content"] = thoughts[0]
    if has_calls:
        out["tool_calls"] = _tool_calls(index, message.get("tool_calls"))
    else:
        out.pop("tool_calls", None)
    return out


def _text(index: int, role: str, content: object, *, required: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and not required:
        return ""
    if isinstance(content, Sequence):
        texts = []
        for place, part in enumerate(content):
            kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
            text = part.get("text") if isinstance(part, Mapping) else None
            if kind == "text" and not isinstance(text, str):
                found = f"is {type(text).__name__}" if "text" in part else "is missing"
                raise ChatTemplateError(
                    f"message {index} ({role}): content[{place}] is a text part, whose field 'text' {found}; "
                    "it must be a string",
                    message_index=index,
                    role=role,
                )
            if kind != "text" or not isinstance(text, str):
                raise ChatTemplateError(
                    f"message {index} ({role}) holds a part of type {kind!r}; only text parts are supported",
                    message_index=index,
                    role=role,
                )
            texts.append(text)
        return "".join(texts)
    raise ChatTemplateError(
        f"message {index} ({role}) needs content: a string or a list of text parts, not {type(content).__name__}",
        message_index=index,
        role=role,
    )


def _tool_calls(index: int, calls: object) -> list[dict[str, object]]:
    def refuse(reason: str) -> ChatTemplateError:
        return ChatTemplateError(f"message {index} (assistant): {reason}", message_index=index, role="assistant")

    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise refuse("tool_calls must be a list")
    out: list[dict[str, object]] = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise refuse("each tool call needs {'type': 'function', 'function': {'name': ..., 'arguments': ...}}")
        arguments: object = function.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments) if arguments.strip() else {}
            except (ValueError, RecursionError) as error:
                raise refuse(f"the arguments of {function['name']!r} are not JSON: {error}") from None
        if not isinstance(arguments, Mapping):
            raise refuse(f"the arguments of {function['name']!r} must be an object")
        try:
            json.dumps(arguments, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise refuse(f"the arguments of {function['name']!r} cannot be written as JSON: {error}") from None
        out.append({**call, "function": {**function, "arguments": dict(arguments)}})
    return out
