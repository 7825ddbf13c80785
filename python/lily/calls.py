"""The two forms in which models of the family write a tool call, read incrementally.

XML form (Qwen3.5, Qwen3.6)          JSON form (Qwen3-Next)

    <tool_call>                          <tool_call>
    <function=NAME>                      {"name": "NAME", "arguments": {"KEY": VALUE}}
    <parameter=KEY>                      </tool_call>
    VALUE
    </parameter>
    </function>
    </tool_call>

Values of the XML form are raw text: they may hold any of these tags. A tag closes a value only where the whole
structure goes on behind it. Both readers take text in any pieces and give the same result for every split.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Literal, cast

from .arguments import ArgumentsWriter, ArgumentTypes, parse_json, refuse_constant

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"

_PARAMETER: Final = "<parameter="
_VALUE_END: Final = "</parameter>"
_FUNCTION_END: Final = "</function>"
_ANY_OPEN: Final = re.compile(r"<tool_call>\s*<function=")
_ANY_CLOSE: Final = re.compile(r"</function>\s*</tool_call>")

_SPACE: Final = re.compile(r"\s*")
NAME: Final = re.compile(r"[^\s<>][^<>\n]*")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*+\\?', re.DOTALL)  # up to the closing quote, which is a part of its own
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*+("?)|[\[\]{},]', re.DOTALL)
_JSON_CHARACTERS: Final = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+')
_JSON_ESCAPE_START: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
_CONTROL: Final = re.compile(r"[\x00-\x1f]")

Part = str | re.Pattern[str]
_MISMATCH: Final = -1
_XML_HEAD: Final[tuple[Part, ...]] = (OPEN, _SPACE, "<function=", NAME, ">")
_JSON_NAME: Final[tuple[Part, ...]] = (OPEN, _SPACE, "{", _SPACE, '"name"', _SPACE, ":", _SPACE)
_JSON_HEAD: Final[tuple[Part, ...]] = (
    *(*_JSON_NAME, _STRING, '"', _SPACE, ","),
    *(_SPACE, '"arguments"', _SPACE, ":", _SPACE, "{"),
)


def _match(parts: tuple[Part, ...], text: str, at: int = 0) -> int | None:
    """Match literals and patterns in a row: where they end, _MISMATCH, or None if more text must decide."""
    for part in parts:
        if isinstance(part, str):
            if not text.startswith(part, at):
                return None if part.startswith(text[at : at + len(part)]) else _MISMATCH
            at += len(part)
        else:
            found = part.match(text, at)
            if found is None:
                return None if at == len(text) else _MISMATCH
            at = found.end()
            if at == len(text):
                return None
    return at


@dataclass(frozen=True, slots=True)
class CallHead:
    """The start of a call. `end`: where its arguments begin. arguments: all of them as JSON, if they were read too."""

    name: str
    end: int
    is_xml: bool
    arguments: str | None = None


def read_head(text: str, *, final: bool) -> CallHead | Literal["more", "none"]:
    """The start of a call in `text`, which begins with `<tool_call>`; "none" if it is ordinary text."""
    xml = _match(_XML_HEAD, text)
    if xml is not None and xml != _MISMATCH:
        return CallHead(text[text.index("=") + 1 : xml - 1].strip(), xml, is_xml=True)
    head = _match(_JSON_HEAD, text)
    if head is not None and head != _MISMATCH:
        name, _ = json.JSONDecoder(strict=False).raw_decode(text, cast(int, _match(_JSON_NAME, text)))
        return CallHead(name, head, is_xml=False)
    if (xml is None or head is None) and not final:
        return "more"
    start = _match((OPEN, _SPACE, "{", _SPACE, '"'), text)
    return "none" if start is None or start == _MISMATCH else _whole_json_call(text, final)


def _whole_json_call(text: str, final: bool) -> CallHead | Literal["more", "none"]:
    """A call in JSON whose keys do not come in the usual order, or whose arguments are JSON inside a string."""
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text, text.index("{"))
    except (ValueError, RecursionError):
        return "none" if final else "more"
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = parse_json(arguments)
    if not isinstance(value.get("name"), str) or not isinstance(arguments, dict):
        return "none"
    close = _match((_SPACE, CLOSE), text, end)
    if close is None and not final:
        return "more"
    if close is None or close == _MISMATCH:
        close = end
    return CallHead(value["name"], close, is_xml=False, arguments=json.dumps(arguments, ensure_ascii=False))


class CallReader(ABC):
    """Reads the arguments of one call and writes them as JSON."""

    def __init__(self, types: ArgumentTypes) -> None:
        self._types = types
        self._arguments = ArgumentsWriter()
        self._text = ""

    def push(self, text: str, *, final: bool) -> tuple[str, str | None]:
        """Add text, the last one if `final`. Returns new JSON text, and the text behind the call once that ended."""
        self._text += text
        rest: str | None = None
        while (step := self._step(final)) is True:
            pass
        if isinstance(step, str):
            self._arguments.close()
            rest = step
        return self._arguments.take(), rest

    @abstractmethod
    def _step(self, final: bool) -> bool | str:
        """One step: True if there may be another one, False if more text is needed, or the text behind the call."""


class XmlCall(CallReader):
    """Arguments of the XML form, from behind `<function=NAME>`."""

    def __init__(self, types: ArgumentTypes) -> None:
        super().__init__(types)
        self._key = ""  # the parameter whose value is being read
        self._value: list[str] = []  # of it, as far as it was taken out of the text
        self._close = ""  # the text that may end it
        self._is_text = False
        self._is_open = False  # its JSON string was begun

    def _step(self, final: bool) -> bool | str:
        return self._in_value(final) if self._key else self._between(final)

    def _between(self, final: bool) -> bool | str:
        """Outside of values: the next parameter, or the end."""
        text = self._text.lstrip()
        start = _match((_PARAMETER, NAME, ">"), text)
        if start is not None and start != _MISMATCH and (final or start < len(text)):
            # Written inline, without a line break before the value, it has none behind it either.
            is_inline = not text.startswith("\n", start)
            self._close = _VALUE_END if is_inline else "\n" + _VALUE_END
            self._text = text[start if is_inline else start + 1 :]
            self._start_value(text[len(_PARAMETER) : start - 1])
            return True
        ends = _match((_FUNCTION_END, _SPACE, CLOSE), text), _match((CLOSE,), text)
        for end in ends:
            if end is not None and end != _MISMATCH:
                return text[end:]
        if start != _MISMATCH or None in ends:
            # At the end of the stream an unfinished tag is markup, not text.
            return "" if final else False
        return text.removeprefix(_FUNCTION_END)

    def _start_value(self, key: str) -> None:
        self._key, self._value, self._is_open = key, [], False
        self._arguments.key(key)
        self._is_text = self._types.is_text(key)

    def _in_value(self, final: bool) -> bool | str:
        text, start = self._text, 0
        while (at := text.find(self._close, start)) >= 0:
            ends = self._ends_value(text, at, final)
            if ends is None:
                self._take(at)
                return False
            if ends:
                self._take(at)
                self._text = self._text[len(self._close) :]
                self._end_value()
                return True
            start = at + 1
        if final:
            self._take(len(text))
            self._end_value()
            return ""
        # Nothing in front of the last refused closing tag can still be part of one.
        self._take(max(start, len(text) - overlap(text, self._close)))
        return False

    def _take(self, count: int) -> None:
        """Move the first `count` characters of the text into the value."""
        piece, self._text = self._text[:count], self._text[count:]
        self._value.append(piece)
        if not self._is_text:
            return
        if self._is_open:
            self._arguments.characters(piece)
        elif not self._types.may_be_word(self._key, value := "".join(self._value)):
            self._is_open = True
            self._arguments.json('"')
            self._arguments.characters(value)

    def _end_value(self) -> None:
        value = "".join(self._value)
        if self._is_open:
            self._arguments.json('"')
        elif self._is_text:
            self._arguments.json(self._types.text_to_json(self._key, value))
        else:
            self._arguments.json(self._types.to_json(self._key, value))
        self._key = ""

    def _ends_value(self, text: str, at: int, final: bool) -> bool | None:
        """Whether the closing tag at `at` ends the value, or None if more text must decide."""
        behind = at + len(self._close)
        key_end = _match((_SPACE, _PARAMETER, NAME, ">"), text, behind)
        if key_end is not None and key_end != _MISMATCH:
            key = text[text.index(_PARAMETER, behind) + len(_PARAMETER) : key_end - 1]
            # Text may quote markup; but only a parameter of this tool that was not given yet can follow.
            return not self._is_text or (self._types.is_known(key) and key not in self._arguments.keys)
        end = _match((_SPACE, _FUNCTION_END, _SPACE, CLOSE), text, behind)
        if end is not None and end != _MISMATCH:
            return not self._is_text or self._ends_call(text, at, end, final)
        short = _match((_SPACE, CLOSE), text, behind)
        is_last = short is not None and short != _MISMATCH and not text[short:].strip()
        if is_last or key_end is None or end is None or short is None:
            # The tags may be incomplete at the end of the answer, but nowhere else.
            return True if final else None
        return False

    def _ends_call(self, text: str, at: int, end: int, final: bool) -> bool | None:
        """Whether a full closing sequence ends the call, and not an example of a call inside the text.

        It does if the answer ends there or another call follows. If other text follows, a later closing sequence that
        nothing opened shows that this one was quoted.
        """
        value = "".join(self._value) + text[:at]
        is_quoted = len(_ANY_OPEN.findall(value)) > len(_ANY_CLOSE.findall(value))
        behind = text[end:].lstrip()
        follows = _match((OPEN, _SPACE, "<function="), behind)
        if not is_quoted and ((follows is not None and follows != _MISMATCH) or behind.startswith("</think>")):
            return True
        later = _ANY_CLOSE.search(text, end)
        if later is not None:
            return not is_quoted and _ANY_OPEN.search(text, end, later.start()) is not None
        return True if final else None


class JsonCall(CallReader):
    """Arguments of the JSON form, from behind their `{`. Strings stream, other values come when they are complete."""

    def __init__(self, types: ArgumentTypes) -> None:
        super().__init__(types)
        self._key: str | None = None  # the argument whose value comes
        self._is_string = False  # within a string value
        self._is_closed = False  # behind the arguments
        self._depth = 0  # of brackets in the value, as far as it was scanned
        self._scanned = 0

    def _step(self, final: bool) -> bool | str:
        if self._is_closed:
            return self._behind(final)
        if self._is_string:
            return self._in_string(final)
        return self._between(final) if self._key is None else self._in_value(final)

    def _between(self, final: bool) -> bool | str:
        text = self._text.lstrip()
        if self._arguments.keys:
            text = text.removeprefix(",").lstrip()
        if text.startswith("}"):
            self._is_closed, self._text = True, text[1:]
            return True
        string_end = _match((_STRING, '"'), text)
        end = _match((_STRING, '"', _SPACE, ":", _SPACE), text)
        if end is None:
            return "" if final else False
        if end == _MISMATCH:
            return text
        self._key = str(parse_json(text[:string_end]))
        self._arguments.key(self._key)
        self._text, self._depth, self._scanned = text[end:], 0, 0
        return True

    def _in_value(self, final: bool) -> bool | str:
        text = self._text
        if text.startswith('"'):
            self._is_string, self._text = True, text[1:]
            self._arguments.json('"')
            return True
        end = self._find_end(text)
        if end is None and not final:
            return False
        self._end_value(text[:end].strip())
        self._text = text[end:] if end is not None else ""
        return True

    def _find_end(self, text: str) -> int | None:
        """The `,` or bracket behind the value. Goes on where the last call had to stop."""
        for token in _JSON_TOKEN.finditer(text, self._scanned):
            if token[0].startswith('"'):
                if not token[1]:
                    break
            elif token[0] in "[{":
                self._depth += 1
            elif not self._depth:
                return token.start()
            elif token[0] in "]}":
                self._depth -= 1
            self._scanned = token.end()
        return None

    def _end_value(self, raw: str) -> None:
        key, self._key = self._key or "", None
        try:
            value = json.loads(raw, strict=False, parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            self._arguments.json(self._types.to_json(key, raw))
        else:
            self._arguments.json(json.dumps(value, ensure_ascii=False) if _CONTROL.search(raw) else raw)

    def _in_string(self, final: bool) -> bool | str:
        text = self._text
        end = cast(re.Match[str], _JSON_CHARACTERS.match(text)).end()
        # Line breaks and other control characters must be escaped, but models forget that.
        self._arguments.json(_CONTROL.sub(lambda control: json.dumps(control[0])[1:-1], text[:end]))
        self._text = text = text[end:]
        if text.startswith('"') or (final and not text):
            self._arguments.json('"')
            self._is_string, self._key, self._text = False, None, text[1:]
            return True
        if not final and (not text or _JSON_ESCAPE_START.fullmatch(text)):
            return False
        self._arguments.json("\\\\")  # a backslash that starts no escape stands for itself
        self._text = text[1:]
        return True

    def _behind(self, final: bool) -> bool | str:
        end = _match((_SPACE, "}", _SPACE, CLOSE), self._text)
        if end is None:
            return "" if final else False
        if end != _MISMATCH:
            return self._text[end:]
        return self._text.lstrip().removeprefix("}")


def overlap(text: str, tag: str) -> int:
    """Length of the longest end of `text` that may be the start of `tag`."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)
