"""Arguments of a tool call: raw text to JSON by the tool's schema, written piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, NoReturn

from .parameter_schemas import ParameterSchemas

_INTEGER: Final = re.compile(r"-?\d+(\.0+)?")
_WORDS: Final = {"true": ("boolean", "true"), "false": ("boolean", "false"), "null": ("null", "null")}
# Python's words: many templates print values of the history that way, and models repeat what they read.
_PYTHON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_NULLS: Final = ("null", "None")


class ArgumentTypes:
    """The JSON types that the parameters of one tool may have.

    parameters: the JSON schema of the tool's arguments (`{"type": "object", "properties": ..}`), or None.
    """

    def __init__(self, parameters: Mapping[str, object] | None) -> None:
        self._schemas = ParameterSchemas(parameters or {})
        self._words: dict[str, dict[str, str]] = {}

    def is_known(self, name: str) -> bool:
        """Whether the tool has this parameter; True for every name if its schema lists none."""
        return not self._schemas.named or self._schemas.describes(name)

    def is_text(self, name: str) -> bool:
        """Whether the raw text is the value: the schema allows a string, or says nothing. It then needs no quotes."""
        types = self._schemas.types(name)
        return not types or "string" in types

    def may_be_word(self, name: str, start: str) -> bool:
        """Whether text that begins with `start` can be a value that is no string, where `is_text` holds."""
        return any(word.startswith(start) for word in self._words_of(name))

    def text_to_json(self, name: str, raw: str) -> str:
        """JSON text of a value for which `is_text` holds."""
        return self._words_of(name).get(raw) or json.dumps(raw, ensure_ascii=False)

    def _words_of(self, name: str) -> dict[str, str]:
        """JSON text by raw text: the null of an optional string, and listed values that are no strings."""
        if name not in self._words:
            choices = self._schemas.choices(name) or ()
            listed = [json.dumps(value) for value in choices if not isinstance(value, str)]
            words = {word: word for word in listed}
            if "null" in self._schemas.types(name):
                words |= dict.fromkeys(_NULLS, "null")
            self._words[name] = {word: text for word, text in words.items() if word not in choices}
        return self._words[name]

    def to_json(self, name: str, raw: str) -> str:
        """JSON text of a value that is no string. What does not fit the schema's type stays the raw text, as a string.

        Numbers, arrays and objects keep the model's spelling.
        """
        types = self._schemas.types(name)
        text = raw.strip()
        text = _PYTHON_WORDS.get(text, text)
        if text in _WORDS:
            kind, word = _WORDS[text]
            return word if kind in types else json.dumps(raw, ensure_ascii=False)
        value = parse_json(text)
        is_whole = _INTEGER.fullmatch(text) is not None
        fits = (
            (isinstance(value, Mapping) and "object" in types)
            or (isinstance(value, list) and "array" in types)
            or (isinstance(value, (int, float)) and "number" in types)
            or (isinstance(value, (int, float)) and "integer" in types and is_whole)
        )
        if not fits:
            return json.dumps(raw, ensure_ascii=False)
        return text.partition(".")[0] if is_whole and "number" not in types and "." in text else text


class ArgumentsWriter:
    """JSON text of an object, written as it comes in: each method adds to `take`'s next piece."""

    def __init__(self) -> None:
        self._text = ""
        self._is_empty = True
        self.keys: set[str] = set()

    def key(self, name: str) -> None:
        self._text += ("{" if self._is_empty else ", ") + json.dumps(name, ensure_ascii=False) + ": "
        self._is_empty = False
        self.keys.add(name)

    def json(self, text: str) -> None:
        """JSON text as it is: a whole value, or a part of one."""
        self._text += text

    def characters(self, text: str) -> None:
        """A part of a string, between two quotes that `json` writes."""
        self._text += json.dumps(text, ensure_ascii=False)[1:-1]

    def close(self) -> None:
        self._text += "{}" if self._is_empty else "}"

    def take(self) -> str:
        text, self._text = self._text, ""
        return text


def parse_json(text: str) -> object:
    """The value of JSON text; None (as for null) if it is none. NaN and Infinity are not JSON."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None


def refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
