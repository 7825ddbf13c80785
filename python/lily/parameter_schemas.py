"""The JSON schema of a tool's arguments, seen one parameter at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import unquote

_MAX_DEPTH: Final = 32  # of $ref and branches: no schema of a tool needs as many
_BRANCHES: Final = ("anyOf", "oneOf", "allOf")

Choices = Sequence[object] | None


class ParameterSchemas:
    """root: `{"type": "object", "properties": ..}`, or a schema that leads there by $ref, allOf, anyOf or oneOf.

    named: the schema of each parameter that it lists; where several branches list it, what one of them allows.
    """

    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root
        found: dict[str, list[object]] = {}
        for schema in self._objects():
            properties = schema.get("properties")
            for name, value in properties.items() if isinstance(properties, Mapping) else ():
                found.setdefault(name, []).append(value)
        self.named: Mapping[str, object] = {
            name: values[0] if len(values) == 1 else {"anyOf": values} for name, values in found.items()
        }

    def describes(self, name: str) -> bool:
        """Whether the schema says something about a parameter of this name."""
        return name in self.named or self._schema(name) is not None

    def types(self, name: str) -> frozenset[str]:
        """The JSON types that a parameter may have; empty if the schema does not say."""
        return self._types(self._schema(name), _MAX_DEPTH, {})

    def choices(self, name: str) -> Choices:
        """All values that a parameter may have, one or more, if the schema lists them."""
        return self._choices(self._schema(name), _MAX_DEPTH, {}) or None

    def resolve(self, reference: str) -> object:
        """What a $ref within the schema stands for; None for others."""
        node: object = self._root
        if not reference.startswith("#"):
            return None
        for step in unquote(reference[1:]).split("/")[1:]:
            key = step.replace("~1", "/").replace("~0", "~")
            if isinstance(node, Sequence) and not isinstance(node, str):
                node = node[int(key)] if key.isdecimal() and int(key) < len(node) else None
            else:
                node = node.get(key) if isinstance(node, Mapping) else None
        return node

    def _schema(self, name: str) -> object:
        if name in self.named:
            return self.named[name]
        for schema in self._objects():
            patterns, rest = schema.get("patternProperties"), schema.get("additionalProperties")
            for pattern, value in patterns.items() if isinstance(patterns, Mapping) else ():
                if _finds(pattern, name):
                    return value
            if isinstance(rest, Mapping) and rest:  # an empty one is as good as none
                return rest
        return None

    def _objects(self) -> Iterator[Mapping[str, object]]:
        """The root, and the schemas that it refers to or branches into."""
        waiting: list[object] = [self._root]
        followed = set()
        while waiting:
            schema = waiting.pop(0)
            if not isinstance(schema, Mapping):
                continue
            yield schema
            reference = schema.get("$ref")
            if isinstance(reference, str) and reference not in followed:
                followed.add(reference)
                waiting.append(self.resolve(reference))
            waiting += (branch for word in _BRANCHES for branch in _list(schema.get(word)))

    # known: what each $ref that was followed came to; until then, for one that leads back to itself, nothing.

    def _types(self, schema: object, depth: int, known: dict[str, frozenset[str]]) -> frozenset[str]:
        if not isinstance(schema, Mapping) or not depth:
            return frozenset()
        kind = schema.get("type")
        if isinstance(kind, str):
            return frozenset({kind})
        if isinstance(kind, (list, tuple)):
            return frozenset(map(str, kind))
        if isinstance(reference := schema.get("$ref"), str):
            if reference not in known:
                known[reference] = frozenset()
                known[reference] = self._types(self.resolve(reference), depth - 1, known)
            return known[reference]
        for word in _BRANCHES:
            if branches := _list(schema.get(word)):
                found = [self._types(branch, depth - 1, known) for branch in branches]
                # A branch without a type allows everything, unless all must hold.
                return frozenset().union(*found) if word == "allOf" or all(found) else frozenset()
        return frozenset(map(_type_name, _listed(schema) or ()))

    def _choices(self, schema: object, depth: int, known: dict[str, Choices]) -> Choices:
        if not isinstance(schema, Mapping) or not depth:
            return None
        if (values := _listed(schema)) is not None:
            return values
        if schema.get("type") == "null":
            return [None]
        if isinstance(reference := schema.get("$ref"), str):
            if reference not in known:
                known[reference] = None
                known[reference] = self._choices(self.resolve(reference), depth - 1, known)
            return known[reference]
        for word in _BRANCHES:
            if branches := _list(schema.get(word)):
                found = [self._choices(branch, depth - 1, known) for branch in branches]
                if word == "allOf":  # any of them is a bound
                    return next((values for values in found if values is not None), None)
                return None if None in found else [value for values in found for value in values or ()]
        return None


def _listed(schema: Mapping[str, object]) -> Choices:
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values if isinstance(values, (list, tuple)) else None


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else ()


def _finds(pattern: str, name: str) -> bool:
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return False


def _type_name(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (Mapping, "object")):
        if isinstance(value, kind):
            return name
    return "array"
