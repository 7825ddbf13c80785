"""POST /tokenize and /apply-template: token ids and prompts, without running the model."""

from __future__ import annotations

from typing import Any

from ..chat_template import RenderedPrompt
from ..engine import Engine
from .chat import Messages, chat_messages
from .errors import invalid
from .schemas import JsonObject, PromptFields, reasoning_option


class ApplyTemplateRequest(PromptFields, kw_only=True):
    messages: Messages


class TokenizeRequest(PromptFields, kw_only=True):
    """One of prompt, content (the same) and messages. parse_special: control tokens written in text are such tokens."""

    prompt: str | None = None
    content: str | None = None
    parse_special: bool | None = None
    messages: Messages | None = None


def apply_template(engine: Engine, request: ApplyTemplateRequest) -> object:
    """The text that the model would read for a chat, and its token ids, which /v1/completions takes."""
    prompt = _render(engine, request.messages, request)
    token_ids = engine.tokenize(prompt)
    return {"prompt": str(prompt), "tokens": token_ids, "count": len(token_ids)}


def tokenize(engine: Engine, request: TokenizeRequest) -> object:
    given: list[Any] = [value for value in (request.prompt, request.content, request.messages) if value is not None]
    if len(given) != 1:
        raise invalid("prompt", "give one of prompt, content and messages")
    if request.messages is not None:
        token_ids = engine.tokenize(_render(engine, request.messages, request))
    else:
        token_ids = engine.tokenize(given[0], allow_special=bool(request.parse_special))
    return {"tokens": token_ids, "count": len(token_ids), "max_context": engine.max_context}


def _render(engine: Engine, messages: list[JsonObject], request: PromptFields) -> RenderedPrompt:
    reasoning = reasoning_option(request.reasoning_effort, request.enable_thinking, request.chat_template_kwargs)
    return engine.render(chat_messages(messages), tools=request.tools, reasoning=reasoning)  # type: ignore[arg-type]
