"""Fields that several routes share, and how they become options of the engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from ..params import SamplingParams
from ..planner import ChatOptions
from ..reasoning import BUDGETS, Reasoning
from .errors import invalid, unsupported

JsonObject = dict[str, Any]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ReasoningEffort = Annotated[Effort, Meta(description="none turns thinking off; xhigh and max set no budget")]

_TOKEN_ID: Final = re.compile("0|[1-9][0-9]{0,9}")
# Fields of other servers and of newer versions that would change the answer if they were obeyed.
_GUIDED: Final = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs")


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None


class TemplateOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Options of the chat template. Unknown ones are refused: they would change nothing."""

    enable_thinking: bool | None = None
    preserve_thinking: bool | None = None


class Fields(msgspec.Struct, kw_only=True):
    """What the requests of all routes have."""

    model: str | None = None


class PromptFields(Fields, kw_only=True):
    """What makes a prompt of messages, beside them."""

    tools: list[JsonObject] | None = None
    reasoning_effort: ReasoningEffort | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None


class SamplingFields(Fields, kw_only=True):
    """The fields of SamplingParams, under the same names, and what all routes of OpenAI's kind accept beside them."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    thinking_token_budget: int | None = None
    json_schema: JsonObject | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    prompt_cache_key: str | None = None  # a hint: the prefix cache finds prompts by their tokens
    return_progress: bool | None = None
    timings: bool | None = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None

    def sampling_params(self, **changes: object) -> SamplingParams:
        """Raises TypeError and ValueError, as SamplingParams does, and ApiError for what is not supported."""
        if self.n not in (None, 1):
            raise unsupported("n", f"n is {self.n}; only 1 answer per request is supported")
        for name in _GUIDED:
            if getattr(self, name) is not None:
                raise unsupported(name, f"{name} is not supported; use json_schema, regex, choice or grammar")
        given: dict[str, Any] = {}
        for name in SamplingParams.__dataclass_fields__:
            value = getattr(self, name, None)
            if value is not None and name not in ("logprobs", "prompt_logprobs"):
                given[name] = _bias(value) if name == "logit_bias" else value
        return SamplingParams(**(given | {name: value for name, value in changes.items() if value is not None}))

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class ChatFields(SamplingFields, kw_only=True):
    """What the routes of OpenAI's kind accept that answer conversations."""

    tools: list[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: int | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: TemplateOptions | None = None

    def options(
        self,
        tools: list[JsonObject] | None,
        tool_choice: str | JsonObject | None,
        response_format: JsonObject | None,
        effort: str | None,
    ) -> ChatOptions:
        """The keywords of Engine.chat, those that depend on the route given in the form of chats."""
        return {
            "tools": tools,  # type: ignore[typeddict-item]  # checked by the engine, as the next two
            "tool_choice": tool_choice,  # type: ignore[typeddict-item]
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "response_format": response_format,  # type: ignore[typeddict-item]
            "reasoning": reasoning_option(effort, self.enable_thinking, self.chat_template_kwargs),
        }


def _bias(bias: Mapping[str, float]) -> dict[int, float]:
    for token_id in bias:
        if not _TOKEN_ID.fullmatch(token_id):
            raise invalid("logit_bias", f"logit_bias maps decimal token ids to numbers; {token_id!r} is no such id")
    return {int(token_id): value for token_id, value in bias.items()}


def reasoning_option(
    effort: str | None, enable_thinking: bool | None, options: TemplateOptions | None
) -> Reasoning | None:
    """`reasoning` of Engine.chat for the ways in which clients ask for it; None is the template's default."""
    if options is not None:
        if options.preserve_thinking is False:
            raise unsupported(
                "chat_template_kwargs.preserve_thinking",
                "earlier answers always keep their think block, so that the prefix cache finds them; "
                "leave reasoning out of the history to do without it",
            )
        enable_thinking = options.enable_thinking if options.enable_thinking is not None else enable_thinking
    if enable_thinking is False or effort == "none":
        return False
    if effort is None:
        return enable_thinking
    if effort == "minimal":
        return "low"
    return effort if effort in BUDGETS else True  # type: ignore[return-value]  # mypy cannot follow `in`
