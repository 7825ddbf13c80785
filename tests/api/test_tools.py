from __future__ import annotations

import enum
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from lily import ToolCall, ToolCallError
from lily.arguments import ArgumentTypes
from lily.reasoning import read_reasoning
from lily.tools import as_tools, function_tool, parameters_by_name


class Unit(enum.Enum):
    C = "celsius"
    F = "fahrenheit"


class Point(TypedDict):
    x: float
    label: NotRequired[str]


@dataclass
class Box:
    corner: Point
    name: str = "box"
    tags: list[str] = field(default_factory=list)


class Loop(TypedDict):
    child: Loop | None


class Model:
    """What pydantic's models offer."""

    @classmethod
    def model_json_schema(cls) -> dict[str, object]:
        return {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "integer"}}}


def parameters(function: Callable[..., object]) -> dict[str, Any]:
    return dict(function_tool(function)["function"]["parameters"])


def test_a_function_with_everything() -> None:
    def tool(
        text: str,
        count: int,
        ratio: float | None,
        mode: Literal["a", "b"],
        unit: Unit,
        when: date,
        path: Path,
        box: Box,
        pair: tuple[int, str],
        anything: Any,
        noted: Annotated[str, "a note"],
        untyped,  # type: ignore[no-untyped-def]
        model: Model,
        words: Sequence[str] = (),
        table: dict[str, int] | None = None,
        *,
        flag: bool = False,
        default_unit: Unit = Unit.C,
    ) -> None:
        """Do it."""

    point = {"type": "object", "properties": {"x": {"type": "number"}, "label": {"type": "string"}}, "required": ["x"]}
    schema = parameters(tool)
    assert schema["properties"] == {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "mode": {"type": "string", "enum": ["a", "b"]},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "when": {"type": "string", "format": "date"},
        "path": {"type": "string"},
        "box": {
            "type": "object",
            "properties": {
                "corner": point,
                "name": {"type": "string"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["corner"],
        },
        "pair": {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
            "minItems": 2,
            "maxItems": 2,
        },
        "anything": {},
        "noted": {"type": "string", "description": "a note"},
        "untyped": {},
        "model": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}},
        "words": {"type": "array", "items": {"type": "string"}, "default": ()},
        "table": {
            "anyOf": [{"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "null"}],
            "default": None,
        },
        "flag": {"type": "boolean", "default": False},
        "default_unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
    }
    assert schema["required"] == list(schema["properties"])[:13] and schema["$defs"] == {"A": {"type": "integer"}}
    assert ArgumentTypes(schema).to_json("model", "{}") == "{}"


GOOGLE = """Find flights.

    Prices are per seat.

    Args:
        origin (str): where from,
            as a code
        target: where to

    Returns:
        target: not a parameter
    """
NUMPY = """Find flights.

    Prices are per seat.

    Parameters
    ----------
    origin : str
        where from,
        as a code
    target
        where to

    Returns
    -------
    target
        not a parameter
    """
SPHINX = """Find flights.

    Prices are per seat.

    :param str origin: where from,
        as a code
    :param target: where to
    :returns: nothing
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX])
def test_docstrings(docstring: str) -> None:
    def find(origin: str, target: str) -> None: ...

    find.__doc__ = docstring
    function = function_tool(find)["function"]
    assert function["description"] == "Find flights.\n\nPrices are per seat."
    properties = parameters(find)["properties"]
    assert [p["description"] for p in properties.values()] == ["where from, as a code", "where to"]


def test_methods_and_callable_objects() -> None:
    class Weather:
        def get(self, city: str) -> None:
            """Look outside."""

        def __call__(self, city: str) -> None: ...

    assert function_tool(Weather().get)["function"]["name"] == "get"
    assert function_tool(Weather())["function"]["name"] == "Weather"
    assert parameters(Weather().get) == parameters(Weather())
    assert "description" not in function_tool(lambda: None)["function"]


def positional(a: int, /) -> None: ...
def variadic(*a: int) -> None: ...
def wild(**a: int) -> None: ...
def unknown_type(a: bytes) -> None: ...
def int_keys(a: dict[int, str]) -> None: ...
def loop(a: Loop) -> None: ...
def missing(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (positional, "cannot be filled by name"),
        (variadic, "cannot be filled by name"),
        (wild, "cannot be filled by name"),
        (unknown_type, "bytes.* of a"),
        (int_keys, "keys that are no str"),
        (loop, "Loop of a.child contains itself"),
        (missing, "Nowhere"),
    ],
)
def test_functions_that_cannot_be_described(function: Callable[..., object], match: str) -> None:
    with pytest.raises(ToolCallError, match=match) as caught:
        as_tools([function])
    assert caught.value.tool_name == function.__name__


def named(name: object, **more: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, **more}}


@pytest.mark.parametrize(
    ("tools", "match"),
    [
        ([{}], "tool 0 must be"),
        ([{"name": "f"}], "tool 0 must be"),
        ([named("f"), "g"], "tool 1 is a str"),
        ([named(1)], "tool 0 must be"),
        ([named("a b")], "called 'a b'"),
        ([named("")], "called ''"),
        ([named("f", parameters=[])], "must be a JSON schema"),
        ([named("f"), named("g"), named("f")], "tools 0 and 2 are both called 'f'"),
        ("f", "must be a list"),
        (named("f"), "must be a list"),
    ],
)
def test_malformed_tools_are_named(tools: object, match: str) -> None:
    with pytest.raises(ToolCallError, match=match):
        as_tools(tools)  # type: ignore[arg-type]


def test_dicts_are_passed_on() -> None:
    tool = named("f", parameters={"type": "object"}, strict=True)
    assert as_tools([tool]) == [tool] and as_tools([]) is None and as_tools(None) is None  # type: ignore[list-item]
    assert parameters_by_name(as_tools([tool])) == {"f": {"type": "object"}}  # type: ignore[list-item]


# Raw text to typed values.

SCHEMA = {
    "properties": {
        "whole": {"type": "integer"},
        "number": {"type": "number"},
        "flag": {"type": "boolean"},
        "list": {"type": "array"},
        "object": {"$ref": "#/$defs/O"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "maybe_whole": {"type": ["integer", "null"]},
        "either": {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        "words": {"enum": ["1", "2"]},
        "numbers": {"enum": [1, 2.5]},
        "constant": {"const": True},
        "all": {"allOf": [{"type": "integer"}, {"minimum": 0}]},
        "open": {"anyOf": [{"type": "integer"}, {}]},
        "loop": {"$ref": "#/properties/loop"},
        "away": {"$ref": "https://example.com/schema"},
    },
    "$defs": {"O": {"type": "object"}},
}


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("whole", "5", 5),
        ("whole", "5.0", 5),
        ("whole", "1e3", "1e3"),
        ("whole", "true", "true"),
        ("number", "1.50", 1.5),
        ("number", "5", 5),
        ("number", "Infinity", "Infinity"),
        ("flag", "true", True),
        ("flag", "False", False),
        ("flag", "1", "1"),
        ("list", ' [1, "a"] ', [1, "a"]),
        ("list", "{}", "{}"),
        ("list", "[1,", "[1,"),
        ("object", '{"a": null}', {"a": None}),
        ("maybe_whole", "null", None),
        ("maybe_whole", "None", None),
        ("maybe_whole", "-3", -3),
        ("numbers", "2.5", 2.5),
        ("constant", "true", True),
        ("all", "7", 7),
    ],
)
def test_values_by_type(name: str, raw: str, value: object) -> None:
    types = ArgumentTypes(SCHEMA)
    assert not types.is_text(name)
    result = json.loads(types.to_json(name, raw))
    assert result == value and type(result) is type(value)


@pytest.mark.parametrize("name", ["maybe", "either", "words", "open", "loop", "away", "unknown"])
def test_text_is_never_interpreted(name: str) -> None:
    types = ArgumentTypes(SCHEMA)
    assert types.is_text(name)
    for raw in ("5", "true", '{"a": 1}', ' "x" ', "nulls", ""):
        assert json.loads(types.text_to_json(name, raw)) == raw
    assert json.loads(types.text_to_json(name, "null")) == (None if name == "maybe" else "null")
    assert types.may_be_word(name, "nu") == (name == "maybe")


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/A%20b", "$defs": {"A b": {"properties": {"n": {"type": "integer"}}}}},
        {"allOf": [{"required": ["n"]}, {"properties": {"n": {"type": "integer"}}}]},
        {"oneOf": [{"properties": {"n": {"const": 1}}}, {"properties": {"n": {"const": 2}, "m": {}}}]},
        {"additionalProperties": {"type": "integer"}},
        {"properties": {"m": {}}, "patternProperties": {"^[n]$": {"type": "integer"}}},
        {"patternProperties": {"^n": {"type": "integer"}, "m$": {"type": ["integer", "null"]}}},
        {"properties": {"n": {"$ref": "#/x/1"}}, "x": [{}, {"type": "integer"}]},
    ],
)
def test_parameters_that_a_schema_leads_to(schema: dict[str, object]) -> None:
    types = ArgumentTypes(schema)
    assert types.is_known("n") and not types.is_text("n") and types.to_json("n", "2") == "2"


def test_listed_values_that_are_no_text() -> None:
    types = ArgumentTypes({"properties": {"a": {"enum": ["auto", True, 2, None, "None"]}}})
    values = {"auto": "auto", "true": True, "True": "True", "2": 2, "null": None, "None": "None", "3": "3"}
    for raw, value in values.items():
        result = json.loads(types.text_to_json("a", raw))
        assert result == value and type(result) is type(value)
    assert types.may_be_word("a", "tr") and not types.may_be_word("a", "au")


def test_references_that_lead_back_end_soon() -> None:
    node = {"anyOf": [{"$ref": "#/$defs/N"}] * 5}
    types = ArgumentTypes({"properties": {"a": {"$ref": "#/$defs/N"}}, "$defs": {"N": node}, "$ref": "#"})
    assert types.is_text("a") and types.text_to_json("a", "x") == '"x"'


def test_hostile_schemas_are_read_in_a_moment() -> None:
    """A place has many spellings, and a pattern may take a search by backtracking longer than anybody waits."""
    spellings = ["#/$defs/" + "".join("%61" if n >> bit & 1 else "a" for bit in range(12)) for n in range(1 << 12)]
    node = {"anyOf": [{"$ref": spelling} for spelling in spellings]}
    schema = {"$ref": spellings[0], "$defs": {"a" * 12: node}, "patternProperties": {"^(a+)+$": {"type": "integer"}}}
    types = ArgumentTypes(schema)
    assert types.is_known("a" * 60 + "!") and types.to_json("a" * 60 + "!", "2") == "2"
    assert ArgumentTypes({"properties": {"b": node}, "$defs": schema["$defs"]}).is_text("b")


def test_without_a_schema_everything_is_text() -> None:
    for schema in (None, {}, {"properties": 5}):
        types = ArgumentTypes(schema)
        assert types.is_text("a") and types.is_known("a")
    assert not ArgumentTypes(SCHEMA).is_known("a")
    assert not ArgumentTypes({**SCHEMA, "additionalProperties": {}}).is_known("a")


def test_a_tool_call_is_called_with_its_arguments() -> None:
    call = ToolCall(id="call_1", name="f", arguments_json='{"a": 1, "b": "é"}')
    assert call.arguments == {"a": 1, "b": "é"} and SimpleNamespace(**call.arguments).b == "é"


@pytest.mark.parametrize(
    ("reasoning", "expected"),
    [
        (None, (None, None)),
        (True, (True, None)),
        (False, (False, None)),
        (0, (False, None)),
        (1, (True, 1)),
        ("low", (True, 1024)),
        ("medium", (True, 4096)),
        ("high", (True, 16384)),
    ],
)
def test_reasoning(reasoning: Any, expected: tuple[bool | None, int | None]) -> None:
    assert read_reasoning(reasoning) == expected


@pytest.mark.parametrize(("reasoning", "error"), [(-1, ValueError), ("max", ValueError), (0.5, TypeError)])
def test_bad_reasoning(reasoning: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="reasoning"):
        read_reasoning(reasoning)
