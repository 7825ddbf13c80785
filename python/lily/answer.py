"""What the answer of a chat may be: `tool_choice`, `parallel_tool_calls` and `response_format` as one grammar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict, cast

from .errors import ToolCallError
from .grammar import Grammar, either, json_grammar, params_grammar
from .messages import Tool
from .params import SamplingParams, json_schema_text
from .tool_grammar import CallForm, calls_grammar


class NamedFunction(TypedDict):
    name: str


class NamedToolChoice(TypedDict):
    type: Literal["function"]
    function: NamedFunction


# Any other text is the name of a tool.
ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | str


class JsonSchemaFormat(TypedDict):
    """`schema` is a dict, JSON text or a pydantic class. It is always enforced, whatever `strict` says."""

    schema: Mapping[str, object] | str | type
    name: NotRequired[str]
    description: NotRequired[str]
    strict: NotRequired[bool]


class ResponseFormat(TypedDict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NotRequired[JsonSchemaFormat]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRules:
    """grammar: of the whole answer behind the think block, if it is not free. allows_calls: calls are looked for.

    forbids_calls: the model sees tools in the prompt, but must not begin a call.
    """

    grammar: Grammar | None = None
    allows_calls: bool = False
    forbids_calls: bool = False


def answer_rules(
    params: SamplingParams,
    *,
    tools: Sequence[Tool] | None,
    tool_choice: ToolChoice | None,
    parallel_tool_calls: bool,
    response_format: ResponseFormat | None,
    template_source: str,
) -> AnswerRules:
    """The rules of one request. tool_choice None is "auto" with tools, "none" without.

    "auto" leaves the model free, unless parallel_tool_calls is False or a tool is `strict`: then each call that the
    model begins follows the tool's schema. Raises ToolCallError, GrammarError, TypeError or ValueError for options that
    are malformed or contradict each other.
    """
    if not isinstance(parallel_tool_calls, bool):
        raise TypeError(f"parallel_tool_calls must be True or False, not {parallel_tool_calls!r}")
    schema = _response_schema(response_format)
    content = params_grammar(params)
    if schema is not None and content is not None:
        raise ValueError("response_format and one of json_schema, regex, choice and grammar are given; use one of them")
    if schema is not None:
        content = json_grammar(schema)
    offered = _chosen(tools or [], tool_choice)
    if not offered:
        return AnswerRules(grammar=content, forbids_calls=bool(tools) and content is None)
    required = tool_choice not in (None, "auto")
    if required and content is not None:
        raise ValueError(
            f"tool_choice {tool_choice!r} wants a tool call, but the request also asks for another grammar"
        )
    is_strict = any(tool["function"].get("strict") for tool in offered)
    if not (required or is_strict or content or not parallel_tool_calls):
        return AnswerRules(allows_calls=True)
    calls = calls_grammar(
        {tool["function"]["name"]: tool["function"].get("parameters") for tool in offered},
        _call_form(template_source),
        at_most_one=not parallel_tool_calls,
        required=required or content is not None,
    )
    return AnswerRules(grammar=calls if content is None else either(content, calls), allows_calls=True)


def _chosen(tools: Sequence[Tool], tool_choice: ToolChoice | None) -> Sequence[Tool]:
    """The tools that may be called."""
    if tool_choice == "none" or (tool_choice is None and not tools):
        return []
    if tool_choice is None or tool_choice in ("auto", "required"):
        if tool_choice == "required" and not tools:
            raise ToolCallError("tool_choice is 'required', but no tools are given")
        return tools
    function = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else tool_choice
    if not isinstance(name, str):
        raise ToolCallError(
            "tool_choice must be 'none', 'auto', 'required', the name of a tool or "
            "{'type': 'function', 'function': {'name': ...}}, "
            f"not {tool_choice!r}"
        )
    named = [tool for tool in tools if tool["function"]["name"] == name]
    if not named:
        known = ", ".join(repr(tool["function"]["name"]) for tool in tools) or "none"
        raise ToolCallError(f"tool_choice names {name!r}, but the tools are: {known}", tool_name=name)
    return named


def _call_form(template_source: str) -> CallForm:
    """The form in which the template writes calls of the history, and therefore the model its own."""
    if "<function=" in template_source:
        return "xml"
    if "<tool_call>" in template_source:
        return "json"
    raise ToolCallError("the chat template writes no tool calls, so this tool_choice cannot be enforced; use 'auto'")


def _response_schema(response_format: ResponseFormat | None) -> str | None:
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return '{"type": "object"}'
    if kind != "json_schema":
        raise ValueError(
            f"response_format must be {{'type': 'text' | 'json_object' | 'json_schema', ..}}, not {response_format!r}"
        )
    described = response_format.get("json_schema")
    if not isinstance(described, Mapping) or "schema" not in described:
        raise ValueError("response_format of type 'json_schema' needs {'json_schema': {'name': ..., 'schema': ...}}")
    return json_schema_text(cast(object, described["schema"]))
