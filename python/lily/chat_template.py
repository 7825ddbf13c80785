"""Chat messages to one prompt through the checkpoint's Jinja template, safe against control tokens in user text."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import ChatTemplateError, CheckpointError
from .files import home_path, read_text
from .messages import Message, TemplateMessage, Tool, template_messages, with_reasoning_apart
from .tokenizer import Tokenizer, read_tokenizer_config, special_token_texts
from .turns import Render, Turns, why_not_by_turns
from .unicode import lone_surrogate

# Characters that cannot be part of anybody's text by meaning; the first one absent from a request guards it.
_GUARDS: Final = [chr(code) for code in range(0xF8F0, 0xF900)] + [chr(code) for code in range(0xF0000, 0xF0400)]
_MAX_PRODUCT: Final = 1 << 20  # characters, entries or bits
_STRUCTURAL_KEYS: Final = frozenset({"role", "type"})

_log: Final = logging.getLogger("lily")


class RenderedPrompt(str):
    """A prompt as text that remembers which control tokens the template wrote; those in the caller's text are text."""

    _guarded: str  # the prompt, with the guard after each character of the caller that could begin a control token
    _guard: str

    def __new__(cls, guarded: str, guard: str) -> RenderedPrompt:
        prompt = super().__new__(cls, guarded.replace(guard, ""))
        prompt._guarded, prompt._guard = guarded, guard
        return prompt

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]  # for copy and pickle
        return self._guarded, self._guard

    @property
    def opens_reasoning(self) -> bool:
        """Whether the prompt ends inside a think block, so that the answer starts with reasoning."""
        return self._guarded.rstrip().endswith("<think>")

    def token_ids(self, tokenizer: Tokenizer) -> list[int]:
        return tokenizer.encode(self._guarded, allow_special=True, guard=self._guard)


class ChatTemplate:
    """A chat template with the environment that Hugging Face templates expect.

    by_turns: render turn by turn (turns.py), so that the prompt of a conversation starts with that of its beginning.
    False, or a template that does not work that way (a warning says so), leaves the whole history to the template.

    Text of messages and tools never becomes a control token: each character in it that could start an added token gets
    a private guard character behind it, which the tokenizer leaves out after it has found the control tokens that the
    template itself wrote. The content of assistant messages keeps the model's own markup (added tokens that are not
    special, such as `</think>` and `<tool_call>`), because templates and models read it there.
    """

    def __init__(
        self, source: str, tokenizer: Tokenizer, variables: Mapping[str, str], *, by_turns: bool = False
    ) -> None:
        if not source.strip():
            raise ChatTemplateError("the chat template is empty: pass chat_template to Engine")
        self.source = source
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"the chat template has an error in line {error.lineno}: {error.message}") from None
        except (ArithmeticError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError) as error:
            # What Jinja lets through: constants that it computes, and nesting that Python does not compile.
            raise ChatTemplateError(f"the chat template cannot be compiled: {type(error).__name__}: {error}") from error
        self._variables = dict(variables)
        added = tokenizer.added_tokens
        firsts = "".join(sorted({token[0] for token in added}))
        markup = sorted(set(added) - tokenizer.special_tokens, key=len, reverse=True)
        starts = f"[{re.escape(firsts)}]" if firsts else "(?!)"
        self._data = re.compile(starts)
        allowed = "|".join(map(re.escape, markup))
        self._own_text = re.compile(f"(?!{allowed}){starts}" if allowed else starts)
        reason = why_not_by_turns(self._renderer({})) if by_turns else None
        if reason is not None:
            _log.warning(
                "the chat template cannot be rendered turn by turn (%s): it renders whole conversations, "
                "and earlier answers may change when a new message comes",
                reason,
            )
        self.by_turns = by_turns and reason is None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Tool] | None = None,
        enable_thinking: bool | None = None,
        add_generation_prompt: bool = True,
    ) -> RenderedPrompt:
        """The prompt for `messages`. Raises ChatTemplateError if they are malformed or the template refuses them."""
        checked = template_messages(messages)
        if self.by_turns:
            checked = [with_reasoning_apart(message) for message in checked]
        try:
            guarded, guarded_tools, guard = self._guard_texts(checked, tools)
        except RecursionError:
            raise ChatTemplateError("messages or tools are nested too deeply, or contain themselves") from None
        render = self._renderer({} if enable_thinking is None else {"enable_thinking": enable_thinking})
        if not self.by_turns:
            return RenderedPrompt(render(guarded, guarded_tools, add_generation_prompt=add_generation_prompt), guard)
        if not any(message["role"] == "user" for message in guarded):
            _check_without_user(render, guarded, guarded_tools, len(messages) - 1)
        turns = Turns(render)
        text = turns.conversation(guarded, guarded_tools, num_merged=len(messages) - len(guarded))
        return RenderedPrompt(text + turns.generation_prompt() if add_generation_prompt else text, guard)

    def _guard_texts(
        self, messages: Sequence[TemplateMessage], tools: Sequence[Tool] | None
    ) -> tuple[list[TemplateMessage], object, str]:
        """Messages and tools with the guard behind each character that could begin a control token; and the guard."""
        seen = _characters(messages) | _characters(tools)
        for surrogate in (character for character in seen if "\ud800" <= character <= "\udfff"):
            index = next((index for index, one in enumerate(messages) if surrogate in _characters(one)), None)
            where = "the tools hold" if index is None else f"message {index} holds"
            raise ChatTemplateError(f"{where} {lone_surrogate(surrogate)}", message_index=index)
        guard = next((character for character in _GUARDS if character not in seen), None)
        if guard is None:
            raise ChatTemplateError("the messages use every private character that could guard control tokens")
        data = _guarded(self._data, guard)
        own_text = _guarded(self._own_text, guard)
        guarded: list[TemplateMessage] = [
            {
                key: value if key in _STRUCTURAL_KEYS else _map_strings(value, own_text if own else data)
                for key, value in message.items()
                for own in [key == "content" and message["role"] == "assistant"]
            }
            for message in messages
        ]
        return guarded, _map_strings(tools, data) if tools else None, guard

    def _renderer(self, options: Mapping[str, object]) -> Render:
        variables = {**self._variables, **options}

        def render(
            messages: Sequence[TemplateMessage], tools: object = None, *, add_generation_prompt: bool = False
        ) -> str:
            try:
                return self._template.render(
                    variables, messages=list(messages), tools=tools, add_generation_prompt=add_generation_prompt
                )
            except ChatTemplateError:
                raise
            except jinja2.TemplateError as error:
                raise ChatTemplateError(f"the chat template cannot render these messages: {error.message}") from None
            except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
                raise ChatTemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error

        return render


def _check_without_user(render: Render, messages: Sequence[TemplateMessage], tools: object, last: int) -> None:
    """Turns are rendered behind a question of our own, so the template could not say that it needs one."""
    try:
        render(messages, tools)
    except ChatTemplateError as error:
        role = str(messages[-1]["role"])
        raise ChatTemplateError(
            f"none of the messages up to the last one, {last} ({role}), is from a user: {error}",
            message_index=last,
            role=role,
        ) from error


def load_chat_template(folder: Path, tokenizer: Tokenizer, override: str | Path | None) -> ChatTemplate | None:
    """The template: `override` (Jinja text or a path), else chat_template.jinja, else that of tokenizer_config.json.

    The checkpoint's own is rendered turn by turn, an override as it is. None if there is none: the checkpoint then only
    completes text. Raises ChatTemplateError if `override` is neither or cannot be read, CheckpointError for the
    checkpoint's own.
    """
    source = _override_source(override) if override is not None else _checkpoint_source(folder)
    if source is None:
        return None
    return ChatTemplate(source, tokenizer, special_token_texts(folder), by_turns=override is None)


def _override_source(override: str | Path) -> str:
    # A template holds a tag or a line break; anything else can only be meant as a path.
    if isinstance(override, str) and ("{" in override or "\n" in override):
        return override
    try:
        text = read_text(home_path("chat_template", override))
    except CheckpointError as error:
        raise ChatTemplateError(f"chat_template cannot be used: {error}") from error
    except ValueError as error:
        raise ChatTemplateError(str(error)) from error
    if text is None:
        raise ChatTemplateError(f"chat_template is neither Jinja text nor a file: {str(override)!r}")
    return text


def _checkpoint_source(folder: Path) -> str | None:
    text = read_text(folder / "chat_template.jinja")
    if text is not None:
        return text
    value = read_tokenizer_config(folder).get("chat_template")
    if value is None or isinstance(value, str):
        return value
    named: dict[object, object] = {}
    for entry in value if isinstance(value, list) else []:
        if isinstance(entry, dict):
            named[entry.get("name")] = entry.get("template")
    default = named.get("default")
    if not isinstance(default, str):
        raise ChatTemplateError(
            f"{folder / 'tokenizer_config.json'} has no chat template named 'default', but {sorted(map(str, named))}; "
            "pass one of them as chat_template"
        )
    return default


class _Sandbox(ImmutableSandboxedEnvironment):
    """Templates come with downloaded models: what they multiply must not fill the memory."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        size = 0
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            size = left.bit_length() * right
        elif operator == "*" and isinstance(right, int) and isinstance(left, Sequence):
            size = len(left) * right
        elif operator == "*" and isinstance(left, int) and isinstance(right, Sequence):
            size = len(right) * left
        if size > _MAX_PRODUCT:
            raise SecurityError(f"a result of {operator} would be longer than {_MAX_PRODUCT:,}")
        return super().call_binop(context, operator, left, right)


class _GenerationTag(Extension):
    """`{% generation %}` marks the model's text for training; a prompt shows what is inside."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own form

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _guarded(pattern: re.Pattern[str], guard: str) -> Callable[[str], str]:
    return lambda text: pattern.sub(lambda match: match.group() + guard, text)


def _map_strings(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            change(k) if isinstance(k, str) else k: v if k in _STRUCTURAL_KEYS else _map_strings(v, change)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_map_strings(item, change) for item in value]
    return value


def _characters(value: object) -> set[str]:
    if isinstance(value, str):
        return set(value)
    if isinstance(value, Mapping):
        return _characters(list(value.keys())) | _characters(list(value.values()))
    if isinstance(value, (list, tuple)):
        return set().union(*map(_characters, value))
    return set()


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As in Hugging Face's environment: Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise ChatTemplateError(f"the chat template refuses these messages: {message}")


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
