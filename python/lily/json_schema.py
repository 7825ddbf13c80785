"""The parts of a JSON schema, and its numbers that the grammar library would read as other ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import unquote

# Keywords of JSON schema below which other schemas stand: one or a list, or a dict of them.
_SCHEMAS: Final = (
    *("items", "prefixItems", "additionalItems", "contains", "additionalProperties", "propertyNames"),
    *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
)
NAMED_SCHEMAS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")

# The library computes with float64, and with whole numbers of 64 bits.
_EXACT: Final = 1 << 53
_LARGEST: Final = (1 << 63) - 1


def children(schema: object) -> Iterator[tuple[str, object]]:
    """Path and value of each schema directly below this one."""
    if not isinstance(schema, Mapping):
        return
    for word, value in schema.items():
        if word in _SCHEMAS and isinstance(value, list):
            yield from ((f"{word}/{index}", child) for index, child in enumerate(value))
        elif word in _SCHEMAS:
            yield word, value
        elif word in NAMED_SCHEMAS and isinstance(value, Mapping):
            for name, child in value.items():
                yield f"{word}/{name.replace('~', '~0').replace('/', '~1')}", child


def resolve(root: object, reference: str) -> object:
    """What a $ref to a place of the schema `root` stands for; None for others."""
    if not reference.startswith("#"):
        return None
    node = root
    for step in unquote(reference[1:]).split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Sequence) and not isinstance(node, str):
            node = node[int(key)] if key.isdecimal() and int(key) < len(node) else None
        else:
            node = node.get(key) if isinstance(node, Mapping) else None
    return node


def misread_number(root: object) -> tuple[str, str] | None:
    """Where a schema has a number that the library would not enforce as it stands, and why; None if it has none."""
    waiting = [("#", root)]
    seen: set[int] = set()
    while waiting:
        path, schema = waiting.pop()
        if not isinstance(schema, Mapping) or id(schema) in seen:
            continue
        seen.add(id(schema))
        if (reason := _misread(schema)) is not None:
            return path, reason
        waiting += [(f"{path}/{step}", child) for step, child in children(schema)]
        if isinstance(reference := schema.get("$ref"), str):  # perhaps to a place that no keyword leads to
            waiting.append((reference, resolve(root, reference)))
    return None


def _misread(schema: Mapping[str, object]) -> str | None:
    for word in ("const", "enum"):
        for number in _whole_numbers(schema.get(word)):
            if abs(number) > _EXACT:
                return f"{word} holds {number}; whole numbers beyond 2^53 lose digits, write such values as text"
    for word in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        bound = schema.get(word)
        if not isinstance(bound, (int, float)) or abs(bound) <= _EXACT:
            continue
        is_exact = abs(bound) <= _LARGEST and float(bound) == bound
        if not is_exact and not (bound >= _LARGEST and "aximum" in word):
            return f"{word} is {bound}, which float64 or 64 bits do not hold; leave it out"
    # Only between 0 and something below 1 does the library take a bound that is excluded for one that is not.
    highest = [bound for word in ("maximum", "exclusiveMaximum") if isinstance(bound := schema.get(word), (int, float))]
    if schema.get("exclusiveMinimum") == 0 and any(0 < bound < 1 for bound in highest):
        return "exclusiveMinimum 0 would let 0 through; write the smallest number that may come as minimum"
    return None


def _whole_numbers(value: object) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, (list, Mapping)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _whole_numbers(item)
