"""Arguments of a tool call: raw text to JSON by the tool's schema, written piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, NoReturn

_INTEGER: Final = re.compile(r"-?\d+(\.0+)?")
_WORDS: Final = {"true": ("boolean", "true"), "false": ("boolean", "false"), "null": ("null", "null")}
# Python's words: many templates print values of the history that way, and models repeat what they read.
_PYTHON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
_NULLS: Final = ("null", "None")
_MAX_DEPTH: Final = 32  # of $ref and anyOf, so that a schema that refers to itself ends


class ArgumentTypes:
    """The JSON types that the parameters of one tool may have.

    parameters: the JSON schema of the tool's arguments (`{"type": "object", "properties": ..}`), or None.
    """

    def __init__(self, parameters: Mapping[str, object] | None) -> None:
        properties = (parameters or {}).get("properties")
        self._root = parameters or {}
        self._properties = properties if isinstance(properties, Mapping) else {}

    def is_known(self, name: str) -> bool:
        """Whether the tool has this parameter; True for every name if its schema lists none."""
        return name in self._properties or not self._properties

    def is_text(self, name: str) -> bool:
        """Whether the raw text is the value: the schema allows a string, or says nothing. It then needs no quotes."""
        types = self._types(name)
        return not types or "string" in types

    def may_be_null(self, name: str, start: str) -> bool:
        """Whether text that begins with `start` can be the null of an optional string, not text that means itself."""
        return any(word.startswith(start) for word in _NULLS) and "null" in self._types(name)

    def text_to_json(self, name: str, raw: str) -> str:
        """JSON text of a value for which `is_text` holds."""
        return "null" if raw in _NULLS and "null" in self._types(name) else json.dumps(raw, ensure_ascii=False)

    def to_json(self, name: str, raw: str) -> str:
        """JSON text of a value that is no string. What does not fit the schema's type stays the raw text, as a string.

        Numbers, arrays and objects keep the model's spelling.
        """
        types = self._types(name)
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

    def _types(self, name: str) -> frozenset[str]:
        return self._types_of(self._properties.get(name), _MAX_DEPTH)

    def _types_of(self, schema: object, depth: int) -> frozenset[str]:
        """Empty if the schema does not say."""
        if not isinstance(schema, Mapping) or not depth:
            return frozenset()
        kind = schema.get("type")
        if isinstance(kind, str):
            return frozenset({kind})
        if isinstance(kind, (list, tuple)):
            return frozenset(map(str, kind))
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._types_of(self._resolve(reference), depth - 1)
        for word in ("anyOf", "oneOf", "allOf"):
            branches = schema.get(word)
            if isinstance(branches, (list, tuple)):
                found = [self._types_of(branch, depth - 1) for branch in branches]
                # A branch without a type allows everything, unless all must hold.
                if word == "allOf" or all(found):
                    return frozenset().union(*found)
                return frozenset()
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        return frozenset(map(_type_name, values)) if isinstance(values, (list, tuple)) else frozenset()

    def _resolve(self, reference: str) -> object:
        node: object = self._root
        if not reference.startswith("#"):
            return None
        for step in reference[1:].split("/")[1:]:
            node = node.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(node, Mapping) else None
        return node


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


def _type_name(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (Mapping, "object")):
        if isinstance(value, kind):
            return name
    return "array"
