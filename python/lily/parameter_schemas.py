"""The JSON schema of a tool's arguments, seen one parameter at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from .json_schema import resolve

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
        others: list[object] = []
        for schema in self._objects():
            for name, value in _items(schema.get("properties")):
                found.setdefault(name, []).append(value)
            # Which pattern a name matches is not looked up: patterns come from clients, and one can take re hours.
            others += (value for _, value in _items(schema.get("patternProperties")))
            rest = schema.get("additionalProperties")
            if isinstance(rest, Mapping) and rest:  # an empty one is as good as none
                others.append(rest)
        self.named: Mapping[str, object] = {name: _any_of(values) for name, values in found.items()}
        self._others = _any_of(others) if others else None

    def describes(self, name: str) -> bool:
        """Whether the schema says something about a parameter of this name."""
        return name in self.named or self._others is not None

    def types(self, name: str) -> frozenset[str]:
        """The JSON types that a parameter may have; empty if the schema does not say."""
        return self._types(self._schema(name), _MAX_DEPTH, {})

    def choices(self, name: str) -> Choices:
        """All values that a parameter may have, one or more, if the schema lists them."""
        return self._choices(self._schema(name), _MAX_DEPTH, {}) or None

    def _schema(self, name: str) -> object:
        return self.named.get(name, self._others)

    def _objects(self) -> Iterator[Mapping[str, object]]:
        """The root, and the schemas that it refers to or branches into."""
        waiting: deque[object] = deque([self._root])
        seen: set[int] = set()
        while waiting:
            schema = waiting.popleft()
            if not isinstance(schema, Mapping) or id(schema) in seen:
                continue
            seen.add(id(schema))
            yield schema
            if isinstance(reference := schema.get("$ref"), str):
                waiting.append(resolve(self._root, reference))
            waiting += (branch for word in _BRANCHES for branch in _list(schema.get(word)))

    # known: what each schema behind a $ref came to, by id(), since a place has many spellings; until then, for one that
    # leads back to itself, nothing.

    def _types(self, schema: object, depth: int, known: dict[int, frozenset[str]]) -> frozenset[str]:
        if not isinstance(schema, Mapping) or not depth:
            return frozenset()
        kind = schema.get("type")
        if isinstance(kind, str):
            return frozenset({kind})
        if isinstance(kind, (list, tuple)):
            return frozenset(map(str, kind))
        if isinstance(reference := schema.get("$ref"), str):
            target = resolve(self._root, reference)
            if id(target) not in known:
                known[id(target)] = frozenset()
                known[id(target)] = self._types(target, depth - 1, known)
            return known[id(target)]
        for word in _BRANCHES:
            if branches := _list(schema.get(word)):
                found = [self._types(branch, depth - 1, known) for branch in branches]
                # A branch without a type allows everything, unless all must hold.
                return frozenset().union(*found) if word == "allOf" or all(found) else frozenset()
        return frozenset(map(_type_name, _listed(schema) or ()))

    def _choices(self, schema: object, depth: int, known: dict[int, Choices]) -> Choices:
        if not isinstance(schema, Mapping) or not depth:
            return None
        if (values := _listed(schema)) is not None:
            return values
        if schema.get("type") == "null":
            return [None]
        if isinstance(reference := schema.get("$ref"), str):
            target = resolve(self._root, reference)
            if id(target) not in known:
                known[id(target)] = None
                known[id(target)] = self._choices(target, depth - 1, known)
            return known[id(target)]
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


def _items(value: object) -> Iterable[tuple[str, object]]:
    return value.items() if isinstance(value, Mapping) else ()


def _any_of(schemas: Sequence[object]) -> object:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _type_name(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "string"), (int, "integer"), (float, "number"), (Mapping, "object")):
        if isinstance(value, kind):
            return name
    return "array"
