"""Grammars of tool calls in the two forms that models of the family write (calls.py shows them)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from .arguments import ArgumentTypes
from .calls import NAME as PARAMETER_NAME
from .errors import GrammarError
from .grammar import Grammar, json_grammar, json_source, lark_grammar, quoted

CallForm = Literal["xml", "json"]

_OPEN: Final = r"<tool_call>\s*<function="
_CLOSE: Final = r"\n<\/parameter>\s*<\/function>\s*<\/tool_call>"
_NEXT: Final = r"\n<\/parameter>\s*<parameter="


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
    more = "" if at_most_one else r' ("\n<tool_call>" call)*'
    if required:
        rules.insert(0, f'start: "<tool_call>" call{more}')
    else:
        rules.insert(0, f"start: TEXT | opened call{more}")
        rules.append(r"opened[lazy]: /(?s:.*)<tool_call>/")
        rules.append(r"TEXT: /(?s:.*)/ & ~/(?s:.*<tool_call>.*)/")
    return lark_grammar("\n".join(rules), free_until=() if required else ("<tool_call>",))


def _json_call(tool: str, name: str, schema: Mapping[str, object]) -> list[str]:
    head = quoted(f'\n{{"name": {quoted(name)}, "arguments": ')
    tail = quoted("}\n</tool_call>")
    return [f"tool_{tool}: {head} arguments_{tool} {tail}", _json_rule(f"arguments_{tool}", schema)]


def _xml_call(tool: str, name: str, schema: Mapping[str, object]) -> list[str]:
    """Parameters in the order of the schema. A schema without properties allows none.

    Text runs raw, up to a tag that the parser takes for its end: the next parameter, or the end of the call unless that
    belongs to a call quoted in the text.
    """
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    listed = schema.get("required")
    required = set(listed) if isinstance(listed, Sequence) else set()
    names = list(properties)
    for parameter in names:
        if not PARAMETER_NAME.fullmatch(parameter) or parameter != parameter.strip():
            raise GrammarError(
                f"the model writes calls of {name!r} in a form that has no place for a parameter called {parameter!r}",
                schema_path=f"#/properties/{parameter}",
            )
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
        value = properties[parameter]
        options = value.get("enum") if isinstance(value, Mapping) else None
        if types.is_text(parameter) and not isinstance(options, Sequence):
            following = _following(names, required, index + 1)
            ends = [f"NEXT_{tool}_{j} value_{tool}_{j}" for j in following if j < len(names)]
            ends += [f"CLOSE_{tool}"] if len(names) in following else []
            rules.append(f"value_{tool}_{index}: {_either(ends)}")
            continue
        rules.append(f"value_{tool}_{index}: json_{tool}_{index} {end_value} from_{tool}_{index + 1}")
        if types.is_text(parameter) and isinstance(options, Sequence):
            texts = (option if isinstance(option, str) else json.dumps(option) for option in options)
            rules.append(f"json_{tool}_{index}: {_either(map(quoted, texts))}")
        else:
            shared = {word: schema[word] for word in ("$defs", "definitions") if word in schema}
            rules.append(_json_rule(f"json_{tool}_{index}", {**shared, **value}))
    end_tag = r">\n"
    for index, parameter in enumerate(names):
        ends_text.append(f"NEXT_{tool}_{index}: {_text_before(tool, _NEXT + _escape(parameter) + end_tag)}")
    return rules + ends_text


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
