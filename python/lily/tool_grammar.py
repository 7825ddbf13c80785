"""Grammars of tool calls in the two forms that models of the family write (calls.py shows them)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast

from .arguments import ArgumentTypes
from .calls import NAME as PARAMETER_NAME
from .errors import GrammarError
from .grammar import Grammar, json_grammar, json_source, lark_grammar, quoted
from .json_schema import NAMED_SCHEMAS, resolve
from .parameter_schemas import ParameterSchemas

CallForm = Literal["xml", "json"]

_OPEN: Final = r"<tool_call>\s*<function="
_CLOSE: Final = r"\n<\/parameter>\s*<\/function>\s*<\/tool_call>"
_NEXT: Final = r"\n<\/parameter>\s*<parameter="
_MOST_CHARACTERS: Final = 4_000_000  # of a grammar: half a second


def calls_grammar(
    tools: Mapping[str, Mapping[str, object] | None], form: CallForm, *, at_most_one: bool, required: bool
) -> Grammar:
    """Calls of `tools`, whose parameters (JSON schema) are given by name.

    required: the answer is calls and nothing else; otherwise any text may stand before them, or instead of them.
    Raises GrammarError for parameters that cannot be enforced.
    """
    rules = [f"call: {_either(f'tool_{index}' for index in range(len(tools)))}"]
    for index, (name, parameters) in enumerate(tools.items()):
        schema = {"type": "object", **(parameters or {})}
        json_grammar(json.dumps(schema))  # for its error, which names the path in the tool's own schema
        rules += _xml_call(f"{index}", name, schema) if form == "xml" else _json_call(f"{index}", name, schema)
        _check_length(sum(map(len, rules)), f"up to {name!r}")
    more = "" if at_most_one else r' ("\n<tool_call>" call)*'
    if required:
        rules.insert(0, f'start: "<tool_call>" call{more}')
    else:
        rules.insert(0, f"start: TEXT | opened call{more}")
        rules.append(r"opened[lazy]: /(?s:.*)<tool_call>/")
        rules.append(r"TEXT: /(?s:.*)/ & ~/(?s:.*<tool_call>.*)/")
    return lark_grammar("\n".join(rules), free_until=() if required else ("<tool_call>",))


def _check_length(characters: int, of: str) -> None:
    if characters > _MOST_CHARACTERS:
        raise GrammarError(
            f"the grammar for calls {of} would have {characters:,} characters, more than {_MOST_CHARACTERS:,}: in XML "
            "a parameter with a $ref takes along the whole schema of its tool; write out what it refers to",
            schema_path="#",
        )


def _json_call(tool: str, name: str, schema: Mapping[str, object]) -> list[str]:
    head = quoted(f'\n{{"name": {quoted(name)}, "arguments": ')
    tail = quoted("}\n</tool_call>")
    return [f"tool_{tool}: {head} arguments_{tool} {tail}", _json_rule(f"arguments_{tool}", schema)]


def _xml_call(tool: str, name: str, schema: Mapping[str, object]) -> list[str]:
    """Parameters in the order of the schema. A schema without properties allows none.

    Text runs raw where its values are not listed, up to a tag that the parser takes for its end: the next parameter, or
    the end of the call unless that belongs to a call quoted in the text.
    """
    schemas = ParameterSchemas(schema)
    properties, required = _listed_parameters(name, schema)
    names = list(properties)
    for parameter in names:
        if not PARAMETER_NAME.fullmatch(parameter) or parameter != parameter.strip():
            raise GrammarError(
                f"the model writes calls of {name!r} in a form that has no place for a parameter called {parameter!r}",
                schema_path=f"#/properties/{parameter}",
            )
    copies = sum('"$ref"' in json.dumps(parameter) for parameter in properties.values())  # see _alone
    _check_length(copies * len(json.dumps(schema)), f"of {name!r}")
    types = ArgumentTypes(schema)
    head, end_value = quoted(f"\n<function={name}>\n"), quoted("\n</parameter>\n")
    tags = [quoted(f"<parameter={parameter}>\n") for parameter in names]
    rules = [f"tool_{tool}: {head} from_{tool}_0"]
    closes = f"CLOSE_{tool}: {_text_before(tool, _CLOSE)} | PLAIN_{tool} (QUOTED_{tool} PLAIN_{tool})* QUOTED_{tool}"
    ends_text = [
        f"PLAIN_{tool}: /(?s:.*)/ & ~/(?s:.*)({_OPEN}|{_CLOSE}|{_NEXT}({'|'.join(map(_escape, names))})>)(?s:.*)/",
        f"QUOTED_{tool}: /{_OPEN}/ PLAIN_{tool} /{_CLOSE}/",
        closes,
    ]
    for index in range(len(names) + 1):
        following = _following(names, required, index)
        # At a place where a tag may start.
        steps = [f"{tags[j]} value_{tool}_{j}" for j in following if j < len(names)]
        steps += [quoted("</function>\n</tool_call>")] if len(names) in following else []
        rules.append(f"from_{tool}_{index}: {_either(steps)}")
    for index, parameter in enumerate(names):
        choices = schemas.choices(parameter) if types.is_text(parameter) else None
        if types.is_text(parameter) and choices is None:
            following = _following(names, required, index + 1)
            ends = [f"NEXT_{tool}_{j} value_{tool}_{j}" for j in following if j < len(names)]
            ends += [f"CLOSE_{tool}"] if len(names) in following else []
            rules.append(f"value_{tool}_{index}: {_either(ends)}")
            continue
        rules.append(f"value_{tool}_{index}: json_{tool}_{index} {end_value} from_{tool}_{index + 1}")
        if choices is not None:
            texts = (choice if isinstance(choice, str) else json.dumps(choice) for choice in choices)
            rules.append(f"json_{tool}_{index}: {_either(map(quoted, texts))}")
        else:
            rules.append(_json_rule(f"json_{tool}_{index}", _alone(properties[parameter], schema)))
    end_tag = r">\n"
    for index, parameter in enumerate(names):
        ends_text.append(f"NEXT_{tool}_{index}: {_text_before(tool, _NEXT + _escape(parameter) + end_tag)}")
    return rules + ends_text


def _listed_parameters(tool: str, schema: Mapping[str, object]) -> tuple[Mapping[str, Mapping[str, object]], set[str]]:
    """The parameters of a tool, and the required ones.

    Raises GrammarError for what says more about them than that: they are written one by one.
    """
    root: dict[str, object] = dict(schema)
    followed: list[object] = []
    while isinstance(reference := root.pop("$ref", None), str) and reference not in followed:
        followed.append(reference)
        target = resolve(schema, reference)
        root |= target if isinstance(target, Mapping) else {}
    properties, listed = (cast(Any, root.get(word, empty)) for word, empty in (("properties", {}), ("required", [])))
    required = set(listed)
    refused: list[str] = [word for word in ("allOf", "anyOf", "oneOf", "enum", "const") if word in root]
    refused += ["required"] if required - set(properties) else []
    refused += ["minProperties"] if cast(int, root.get("minProperties", 0)) > len(required) else []
    if not properties:  # parameters of any name, of which a call could have none
        others = ("patternProperties", "additionalProperties")
        refused += [word for word in others if root.get(word) not in (None, True, False, {})]
    if refused:
        raise GrammarError(
            f"calls of {tool!r} cannot be enforced: the model writes parameters one by one, and {refused[0]!r} "
            "says more about them than 'properties' lists",
            schema_path=f"#/{refused[0]}",
        )
    return properties, required


def _alone(parameter: Mapping[str, object], schema: Mapping[str, object]) -> Mapping[str, object]:
    """The schema of one parameter as a whole document: what it refers to comes along."""
    if '"$ref"' not in json.dumps(parameter):
        return parameter
    whole = {word: value for word, value in schema.items() if word not in ("$id", "$schema")}
    return {**_moved(parameter), "$defs": {"tool": _moved(whole)}}


def _moved(schema: Any) -> Any:
    """The same with references to where `_alone` puts the tool's schema: `#` is always the whole document there."""
    if isinstance(schema, list):
        return [_moved(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    out: dict[str, object] = {}
    for word, value in schema.items():
        if word == "$ref" and isinstance(value, str):
            out[word] = f"#/$defs/tool{value[1:]}" if value == "#" or value.startswith("#/") else value
        elif word in NAMED_SCHEMAS and isinstance(value, Mapping):
            out[word] = {name: _moved(child) for name, child in value.items()}
        else:
            out[word] = value if word in ("enum", "const", "default", "examples") else _moved(value)
    return out


def _text_before(tool: str, end: str) -> str:
    return f"PLAIN_{tool} (QUOTED_{tool} PLAIN_{tool})* /{end}/"


def _following(names: Sequence[str], required: set[str], start: int) -> list[int]:
    """What may come next: the parameters from `start` up to the next required one; len(names) is the end."""
    for index in range(start, len(names)):
        if names[index] in required:
            return list(range(start, index + 1))
    return list(range(start, len(names) + 1))


def _json_rule(rule: str, schema: Mapping[str, object]) -> str:
    (part,) = json.loads(json_source(json.dumps(schema)))["grammars"]
    return f"{rule}: %json {json.dumps(part['json_schema'])}"


def _either(options: Iterable[str]) -> str:
    return " | ".join(options)


def _escape(name: str) -> str:
    return re.escape(name).replace("/", r"\/")
