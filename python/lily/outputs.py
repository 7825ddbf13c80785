"""What generation returns: plain frozen results with the field's usual names (vLLM, OpenAI)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .messages import AssistantMessage

FinishReason = Literal["stop", "length", "tool_calls", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one request. cached_tokens: prompt tokens that were not computed again. reasoning_tokens: chat only."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    total_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total_tokens", self.prompt_tokens + self.completion_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Wall-clock seconds of one request.

    queue_seconds: until the device first worked on it. prefill_seconds: until the first token was drawn.
    decode_seconds: from the first token to the last. Other requests on the same engine share the clock.
    """

    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    time_to_first_token_seconds: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "time_to_first_token_seconds", self.queue_seconds + self.prefill_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """A token and its natural log-probability. `bytes` is exact where `token`, one token's text, cannot be.

    top_logprobs: the most likely tokens at this place, best first; empty inside itself.
    """

    token: str
    token_id: int
    logprob: float
    bytes: bytes
    top_logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One generated token. `text` may be empty (an incomplete character, a held-back stop match, a stop token).

    Joined texts equal the text of the Completion. The last chunk has finish_reason, stop_reason, prompt_logprobs, usage
    and timing.
    """

    text: str
    token_id: int
    logprob: TokenLogprob | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    usage: Usage | None = None
    timing: Timing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A finished completion. token_ids include the stop token; text does not. stop_reason: what matched, else None.

    prompt_logprobs: one entry per token of the prompt, if asked for; the first is None, since nothing stands before it.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: tuple[TokenLogprob, ...] | None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None
    usage: Usage
    timing: Timing

    def _repr_markdown_(self) -> str:
        return f"{self.text}\n\n---\n{_footer(self.usage, self.timing, self.finish_reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A function that the model wants to have called: `function(**call.arguments)`.

    arguments_json: the arguments as JSON text, exactly as they were streamed; always a valid object. In an answer with
    finish_reason "length" the last call may be cut short.
    """

    id: str
    name: str
    arguments_json: str
    arguments: Mapping[str, object] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", json.loads(self.arguments_json))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of the tool call number `index`. id and name come once, first; the `arguments` join to JSON text."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatChunk:
    """One generated token of a chat: pieces of the reasoning, the content and the tool calls; all may be empty."""

    content: str
    reasoning: str
    token_id: int
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprob: TokenLogprob | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    timing: Timing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """A finished answer. `reasoning` is the text of the think block; None if there was none.

    finish_reason is "tool_calls" if the model stopped and wants calls; "length" says that the answer was cut.
    """

    content: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    logprobs: tuple[TokenLogprob, ...] | None
    usage: Usage
    timing: Timing

    def to_message(self) -> AssistantMessage:
        """This answer as a message for the history of the next turn; plain data that json.dumps takes."""
        message: AssistantMessage = {"role": "assistant", "content": self.content}
        if self.reasoning is not None:
            message["reasoning"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments_json}}
                for call in self.tool_calls
            ]
        return message

    def _repr_markdown_(self) -> str:
        thought = ""
        if self.reasoning:
            quoted = self.reasoning.replace("\n", "\n> ")
            thought = f"> {quoted}\n\n"
        calls = "".join(f"\n\n```\n{call.name} {call.arguments_json}\n```" for call in self.tool_calls)
        return f"{thought}{self.content}{calls}\n\n---\n{_footer(self.usage, self.timing, self.finish_reason)}"


def _footer(usage: Usage, timing: Timing, finish_reason: str) -> str:
    return f"*{summary(usage, timing)}, finish_reason {finish_reason}*"


def summary(usage: Usage, timing: Timing) -> str:
    """One line for people: counts and speeds of prefill and decode."""
    return (
        f"prompt {_tokens(usage.prompt_tokens)} ({usage.cached_tokens} cached)"
        f"{_at(timing.prefill_tokens_per_second)}, "
        f"completion {_tokens(usage.completion_tokens)}{_at(timing.decode_tokens_per_second)}, "
        f"first token after {timing.time_to_first_token_seconds * 1000:,.0f} ms"
    )


def _tokens(number: int) -> str:
    return "1 token" if number == 1 else f"{number} tokens"


def _at(tokens_per_second: float) -> str:
    return f" at {tokens_per_second:,.1f} tok/s" if tokens_per_second > 0 else ""  # one token has no rate
