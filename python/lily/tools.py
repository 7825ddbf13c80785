"""Tools as the model is told about them: OpenAI-style dicts, or Python functions whose signature becomes the schema."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from itertools import zip_longest
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

from .errors import ToolCallError
from .messages import Function, Tool

ToolLike = Tool | Callable[..., object]
Schema = dict[str, object]

_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f<>\"\\]+")
_SCALARS: Final[dict[object, Schema]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    time: {"type": "string", "format": "time"},
}


def as_tools(tools: Sequence[ToolLike] | None) -> list[Tool] | None:
    """Checked tools as OpenAI-style dicts; None without any.

    Raises ToolCallError for a malformed description, a function that cannot be described, or two tools of one name.
    """
    if tools is None:
        return None
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Collection):
        raise ToolCallError(f"tools must be a list of dicts or functions, not {type(tools).__name__}")
    checked = [_tool(index, tool) for index, tool in enumerate(tools)]
    names = [tool["function"]["name"] for tool in checked]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ToolCallError(f"tools {names.index(name)} and {index} are both called {name!r}", tool_name=name)
    return checked or None


def parameters_by_name(tools: Sequence[Tool] | None) -> dict[str, Mapping[str, object] | None] | None:
    """The JSON schema of each tool's arguments, as ReplyParser wants it."""
    if tools is None:
        return None
    return {tool["function"]["name"]: tool["function"].get("parameters") for tool in tools}


def function_tool(function: Callable[..., object]) -> Tool:
    """The description of a Python function: parameters from its signature, texts from its docstring.

    Types: str, int, float, bool, None, Literal, Enum, Optional and unions, list, tuple, set, dict, dates, paths,
    TypedDict, dataclasses, pydantic models, and Annotated[.., "what it means"]. A parameter without a default is
    required. The docstring may describe parameters in Google's, NumPy's or Sphinx's style.

    Raises ToolCallError for anything that JSON arguments cannot fill: positional-only parameters, *args, other types.

    >>> def add(a: int, b: int = 1) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> function_tool(add)["function"]["parameters"]["required"]
    ['a']
    """
    name = getattr(function, "__name__", type(function).__name__)
    try:
        signature = inspect.signature(function)
        target = function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__
        hints = get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise ToolCallError(f"the signature of tool {name!r} cannot be read: {error}", tool_name=name) from None
    summary, texts = _read_docstring(inspect.getdoc(function) or "")
    schemas = _Schemas(name)
    properties: dict[str, object] = {}
    required = []
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolCallError(
                f"tool {name!r}: {parameter} cannot be filled by name; use ordinary parameters", tool_name=name
            )
        schema = schemas.of(hints.get(parameter.name, Any), parameter.name)
        if parameter.name in texts and "description" not in schema:
            schema["description"] = texts[parameter.name]
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            schema |= _default(parameter.default)
        properties[parameter.name] = schema
    parameters: Schema = {"type": "object", "properties": properties, "required": required}
    if schemas.definitions:
        parameters["$defs"] = schemas.definitions
    described: Function = {"name": name, "parameters": parameters}
    if summary:
        described["description"] = summary
    return {"type": "function", "function": described}


def _tool(index: int, tool: object) -> Tool:
    if isinstance(tool, Mapping):
        function = tool.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ToolCallError(f"tool {index} must be {{'type': 'function', 'function': {{'name': ..., ..}}}}")
        name, parameters = function["name"], function.get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise ToolCallError(
                f"the parameters of tool {name!r} must be a JSON schema (a dict), not {type(parameters).__name__}",
                tool_name=name,
            )
        checked = cast(Tool, _as_json(name, tool))
    elif callable(tool):
        checked = function_tool(tool)
        name = checked["function"]["name"]
    else:
        raise ToolCallError(f"tool {index} is a {type(tool).__name__}, neither a dict nor a function")
    if not _NAME.fullmatch(name):
        raise ToolCallError(
            f"tool {index} is called {name!r}; a name needs characters, none of them white space or "
            'control characters or one of < > " \\',
            tool_name=name,
        )
    return checked


def _as_json(name: str, tool: Mapping[str, object]) -> object:
    """A copy of a description, as JSON would bring it back."""
    try:
        text = json.dumps(tool, ensure_ascii=False, allow_nan=False)
        text.encode()
        return json.loads(text)
    except (TypeError, ValueError) as error:
        raise ToolCallError(f"tool {name!r} cannot be written as JSON: {error}", tool_name=name) from None
    except RecursionError:
        raise ToolCallError(f"tool {name!r} is nested too deeply, or contains itself", tool_name=name) from None


def _default(value: object) -> Schema:
    if isinstance(value, enum.Enum):
        value = value.value
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return {}  # only a hint for the model: without it the parameter still need not be given
    return {"default": value}


class _Schemas:
    """JSON schemas of the annotations of one function."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._open: list[object] = []  # classes whose fields are being read
        self.definitions: dict[str, object] = {}

    def of(self, hint: object, where: str) -> Schema:
        if hint is Any or hint is object:
            return {}
        if isinstance(hint, typing.Hashable) and hint in _SCALARS:
            return dict(_SCALARS[hint])
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._annotated(arguments[0], arguments[1:], where)
        if origin is Literal:
            return _choices(arguments)
        if origin is Union or origin is types.UnionType:
            return {"anyOf": [self.of(argument, where) for argument in arguments]}
        if hasattr(hint, "__supertype__"):
            return self.of(hint.__supertype__, where)
        if hasattr(hint, "__value__"):
            return self.of(hint.__value__, where)
        kind = origin or hint
        if isinstance(kind, type):
            return self._class(kind, arguments, where)
        raise self._unknown(hint, where)

    def _annotated(self, hint: object, notes: Sequence[object], where: str) -> Schema:
        schema = self.of(hint, where)
        for note in notes:
            text = note if isinstance(note, str) else getattr(note, "description", None)
            if isinstance(text, str):
                schema["description"] = text
        return schema

    def _class(self, kind: type, arguments: tuple[object, ...], where: str) -> Schema:
        if issubclass(kind, enum.Enum):
            return _choices([member.value for member in kind])
        if issubclass(kind, PurePath):
            return {"type": "string"}
        if typing.is_typeddict(kind):
            hints = self._hints(kind, where)
            always = cast(frozenset[str], kind.__required_keys__)  # type: ignore[attr-defined]
            return self._object(
                kind, hints, [key for key, hint in hints.items() if _is_required(hint, key in always)], where
            )
        if dataclasses.is_dataclass(kind):
            fields = [field for field in dataclasses.fields(kind) if field.init]
            missing = dataclasses.MISSING
            required = [f.name for f in fields if f.default is missing and f.default_factory is missing]
            hints = self._hints(kind, where)
            return self._object(kind, {field.name: hints[field.name] for field in fields}, required, where)
        if hasattr(kind, "model_json_schema"):
            schema = cast(Schema, kind.model_json_schema())
            self.definitions |= cast(Schema, schema.pop("$defs", {}))
            return schema
        if issubclass(kind, tuple) and arguments and arguments[-1] is not Ellipsis and not hasattr(kind, "_fields"):
            items = [self.of(argument, where) for argument in arguments]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if issubclass(kind, Mapping):
            if arguments and arguments[0] is not str:
                raise self._unknown(f"{kind.__name__} with keys that are no str", where)
            values = self.of(arguments[1], where) if arguments else {}
            return {"type": "object", "additionalProperties": values or True}
        if (
            issubclass(kind, Iterable)
            and not issubclass(kind, (str, bytes, bytearray))
            and not hasattr(kind, "_fields")
        ):
            items_schema = self.of(arguments[0], where) if arguments else {}
            return {"type": "array"} | ({"items": items_schema} if items_schema else {})
        raise self._unknown(kind, where)

    def _object(self, kind: type, hints: Mapping[str, object], required: list[str], where: str) -> Schema:
        if kind in self._open:
            raise ToolCallError(
                f"tool {self._tool!r}: the type {kind.__name__} of {where} contains itself", tool_name=self._tool
            )
        self._open.append(kind)
        properties = {name: self.of(_bare(hint), f"{where}.{name}") for name, hint in hints.items()}
        self._open.pop()
        return {"type": "object", "properties": properties, "required": required}

    def _hints(self, kind: type, where: str) -> dict[str, object]:
        try:
            return get_type_hints(kind, include_extras=True)
        except (NameError, TypeError) as error:
            raise ToolCallError(
                f"tool {self._tool!r}: the fields of {kind.__name__} of {where} cannot be read: {error}",
                tool_name=self._tool,
            ) from None

    def _unknown(self, hint: object, where: str) -> ToolCallError:
        return ToolCallError(
            f"tool {self._tool!r}: JSON has nothing for the type {hint} of {where}; annotate it with a type of "
            "lily.tools.function_tool, or describe the tool as a dict",
            tool_name=self._tool,
        )


def _bare(hint: object) -> object:
    """A field of a TypedDict without Required, NotRequired and ReadOnly."""
    while getattr(get_origin(hint), "_name", None) in ("Required", "NotRequired", "ReadOnly"):
        hint = get_args(hint)[0]
    return hint


def _is_required(hint: object, otherwise: bool) -> bool:
    """What a field of a TypedDict says itself: the class does not see it where annotations are strings."""
    word = getattr(get_origin(hint), "_name", None)
    return word == "Required" or (otherwise and word != "NotRequired")


def _choices(values: Sequence[object]) -> Schema:
    """`type` stands beside the values where they share one: the parser then knows whether they are text."""
    kinds = {type(value) for value in values}
    schema: Schema = {"enum": list(values)}
    return (_SCALARS[kinds.pop()] if len(kinds) == 1 and kinds <= _SCALARS.keys() else {}) | schema


_SECTION: Final = re.compile(r"(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|See Also):?\s*")
_GOOGLE: Final = re.compile(r"\s*(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
_NUMPY: Final = re.compile(r"(\w+)\s*(?::\s.*)?")
_SPHINX: Final = re.compile(r":param\s+(?:[^:]*\s)?(\w+):\s*(.*)")


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The text before the first section, and the description of each parameter."""
    summary: list[str] = []
    found: dict[str, list[str]] = {}
    section: str | None = None
    current: list[str] | None = None  # the description that further lines belong to
    indent = 0  # of the entries of a section in Google's style
    lines = text.splitlines()
    for line, next_line in zip_longest(lines, lines[1:], fillvalue=""):
        is_underlined = set(next_line.strip()) == {"-"}
        heading = _SECTION.fullmatch(line)
        depth = len(line) - len(line.lstrip())
        if heading and (is_underlined or line.rstrip().endswith(":")):
            is_list = heading[1] in ("Args", "Arguments", "Parameters")
            section, current, indent = ("numpy" if is_underlined else "google") if is_list else "other", None, 0
        elif sphinx := _SPHINX.fullmatch(line):
            section, current = "sphinx", found.setdefault(sphinx[1], [sphinx[2]])
        elif section is None:
            summary.append(line)
        elif section == "sphinx" and line.startswith(":"):
            current = None
        elif section == "google" and depth and depth <= (indent or depth) and (google := _GOOGLE.fullmatch(line)):
            indent, current = depth, found.setdefault(google[1], [google[2]])
        elif section == "numpy" and not depth and (numpy := _NUMPY.fullmatch(line)):
            current = found.setdefault(numpy[1], [])
        elif current is not None and line.strip():
            current.append(line.strip())
    descriptions = {name: " ".join(filter(None, parts)) for name, parts in found.items()}
    return textwrap.dedent("\n".join(summary)).strip(), {name: text for name, text in descriptions.items() if text}
