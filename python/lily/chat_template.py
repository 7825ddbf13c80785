"""Chat messages to one prompt through the checkpoint's Jinja template, safe against control tokens in user text.

Templates of the family render an answer differently once a new question follows: they drop its think block. Each turn
then changes text that was already computed, and a cached prefix is lost. `ChatTemplate` therefore asks the template for
one turn at a time, always behind the same short context, and joins the turns: every turn looks as it did when it was
generated, whatever follows.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import ChatTemplateError
from .messages import Message, TemplateMessage, Tool, template_messages
from .tokenizer import Tokenizer, read_tokenizer_config, special_token_texts

# Characters that cannot be part of anybody's text by meaning; the first one absent from a request guards it.
_GUARDS: Final = [chr(code) for code in range(0xF8F0, 0xF900)] + [chr(code) for code in range(0xF0000, 0xF0400)]
_STRUCTURAL_KEYS: Final = frozenset({"role", "type"})

_log: Final = logging.getLogger("lily")

# The context behind which single turns are rendered. Templates look for the last question, which is this one.
_QUESTION: Final[TemplateMessage] = {"role": "user", "content": "question"}
_ANSWER: Final[TemplateMessage] = {
    "role": "assistant",
    "content": "answer",
    "reasoning": "thought",
    "reasoning_content": "thought",
}
_CALL: Final = {"type": "function", "function": {"name": "f", "arguments": {"a": "b"}}}
_SAMPLE_TOOLS: Final[list[object]] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
_SAMPLE: Final[list[TemplateMessage]] = [
    {"role": "system", "content": "rules"},
    _QUESTION,
    {**_ANSWER, "tool_calls": [_CALL, _CALL]},
    {"role": "tool", "content": "one"},
    {"role": "tool", "content": "two"},
    _ANSWER,
]


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

    by_turns: render turn by turn, so that the prompt of a conversation starts with that of its beginning. False, or a
    template that does not work that way (a warning says so), leaves the whole history to the template.

    Text of messages and tools never becomes a control token: each character in it that could start an added token gets
    a private guard character behind it, which the tokenizer leaves out after it has found the control tokens that the
    template itself wrote. The content of assistant messages keeps the model's own markup (added tokens that are not
    special, such as `</think>` and `<tool_call>`), because templates and models read it there.
    """

    def __init__(
        self, source: str, tokenizer: Tokenizer, variables: Mapping[str, str], *, by_turns: bool = False
    ) -> None:
        self.source = source
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"the chat template has an error in line {error.lineno}: {error.message}") from None
        self._variables = dict(variables)
        added = tokenizer.added_tokens
        firsts = "".join(sorted({token[0] for token in added}))
        markup = sorted(set(added) - tokenizer.special_tokens, key=len, reverse=True)
        starts = f"[{re.escape(firsts)}]" if firsts else "(?!)"
        self._data = re.compile(starts)
        allowed = "|".join(map(re.escape, markup))
        self._own_text = re.compile(f"(?!{allowed}){starts}" if allowed else starts)
        self.by_turns = by_turns and self._works_by_turns()

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
        seen = _characters(checked) | _characters(tools)
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
            for message in checked
        ]
        guarded_tools = _map_strings(tools, data) if tools else None
        options: dict[str, object] = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        if not self.by_turns:
            options["add_generation_prompt"] = add_generation_prompt
            return RenderedPrompt(self._whole(guarded, guarded_tools, options), guard)
        num_merged = len(messages) - len(checked)
        if not any(message["role"] == "user" for message in checked):
            self._check_without_user(guarded, guarded_tools, options, len(messages) - 1)
        text = self._turns(guarded, guarded_tools, options, num_merged)
        return RenderedPrompt(text + (self._opening(options) if add_generation_prompt else ""), guard)

    def _whole(
        self, messages: Sequence[TemplateMessage], tools: object = None, options: Mapping[str, object] | None = None
    ) -> str:
        """What the template makes of all messages at once."""
        variables = {"add_generation_prompt": False, **self._variables, **(options or {})}
        try:
            return self._template.render(variables, messages=list(messages), tools=tools)
        except ChatTemplateError:
            raise
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template cannot render these messages: {error.message}") from None
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template failed: {type(error).__name__}: {error}") from error

    def _turns(
        self, messages: Sequence[TemplateMessage], tools: object, options: Mapping[str, object], num_merged: int
    ) -> str:
        """Head, then turn after turn. num_merged: messages that became a part of the first one."""
        has_system = messages[0]["role"] == "system"
        turns = [self._head(messages[:has_system], tools, options)]
        at = int(has_system)
        while at < len(messages):
            message, end = messages[at], at + 1
            try:
                if message["role"] == "system":
                    opening = self._head([], None, options)
                    turns.append(self._head([message], None, options).removeprefix(opening))
                elif message["role"] == "tool":
                    # Results of parallel calls share a turn.
                    while end < len(messages) and messages[end]["role"] == "tool":
                        end += 1
                    turns.append(self._behind([_QUESTION, _ANSWER], messages[at:end], options))
                else:
                    turns.append(self._behind([_QUESTION], [message], options))
            except ChatTemplateError as error:
                index, role = at + num_merged, str(message["role"])
                raise ChatTemplateError(f"message {index} ({role}): {error}", message_index=index, role=role) from error
            at = end
        return "".join(turns)

    def _head(self, system: Sequence[TemplateMessage], tools: object, options: Mapping[str, object]) -> str:
        """All that stands before the first question."""
        question = self._behind([_QUESTION], [_QUESTION], options)
        return _without_suffix(self._whole([*system, _QUESTION], tools, options), question)

    def _behind(
        self, context: list[TemplateMessage], messages: Sequence[TemplateMessage], options: Mapping[str, object]
    ) -> str:
        """The text of `messages` behind `context`."""
        return _without_prefix(self._whole([*context, *messages], None, options), self._whole(context, None, options))

    def _opening(self, options: Mapping[str, object]) -> str:
        """The generation prompt."""
        prompt = self._whole([_QUESTION], None, {**options, "add_generation_prompt": True})
        return _without_prefix(prompt, self._whole([_QUESTION], None, options))

    def _works_by_turns(self) -> bool:
        """Whether a conversation with one question comes out the same by turns and as a whole."""
        samples: list[tuple[list[TemplateMessage], object]] = [(_SAMPLE[:2], None), (_SAMPLE, _SAMPLE_TOOLS)]
        for messages, tools in samples:
            try:
                whole = self._whole(messages, tools)
            except ChatTemplateError:
                continue  # a template without a system or tool role
            try:
                if self._turns(messages, tools, {}, 0) == whole:
                    continue
                reason = "turns that depend on those around them"
            except ChatTemplateError as error:
                reason = str(error)
            _log.warning(
                "the chat template cannot be rendered turn by turn (%s): it renders whole conversations, "
                "and earlier answers may change when a new message comes",
                reason,
            )
            return False
        return True

    def _check_without_user(
        self, messages: Sequence[TemplateMessage], tools: object, options: Mapping[str, object], last: int
    ) -> None:
        """Turns are rendered behind a question of our own, so the template cannot say that it needs one."""
        try:
            self._whole(messages, tools, options)
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
    completes text. Raises ChatTemplateError if `override` is neither.
    """
    source = _override_source(override) if override is not None else _checkpoint_source(folder)
    if source is None:
        return None
    return ChatTemplate(source, tokenizer, special_token_texts(folder), by_turns=override is None)


def _override_source(override: str | Path) -> str:
    # A template holds a tag or a line break; anything else can only be meant as a path.
    if isinstance(override, str) and ("{" in override or "\n" in override):
        return override
    path = Path(override)
    if not path.is_file():
        raise ChatTemplateError(f"chat_template is neither Jinja text nor a file: {str(override)!r}")
    return path.read_text(encoding="utf-8")


def _checkpoint_source(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
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


class _GenerationTag(Extension):
    """`{% generation %}` marks the model's text for training; a prompt shows what is inside."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own form

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _without_prefix(text: str, prefix: str) -> str:
    if not text.startswith(prefix):
        raise ChatTemplateError("it renders a message differently when another one follows")
    return text[len(prefix) :]


def _without_suffix(text: str, suffix: str) -> str:
    if not text.endswith(suffix):
        raise ChatTemplateError("it renders the first question differently from a later one")
    return text[: len(text) - len(suffix)]


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
