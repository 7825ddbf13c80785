"""tool_choice, parallel_tool_calls and response_format: the grammars, and the real lily-nano under them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lily import Engine, GrammarError, ToolCallError
from lily.grammar import GrammarCompiler, GrammarMatcher
from lily.messages import Tool
from lily.parse import ReplyParser
from lily.stream import fold_chat
from lily.tokenizer import Tokenizer
from lily.tool_grammar import calls_grammar

STOP = 4072  # <|im_end|>
WRITE = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "lines": {"type": "integer"},
        "text": {"type": "string"},
        "mode": {"enum": ["new", "at the end"], "type": "string"},
        "options": {"type": "object", "properties": {"é": {"type": "boolean"}}, "additionalProperties": False},
    },
    "required": ["path", "text"],
}
PARAMETERS: dict[str, Mapping[str, object] | None] = {"write": WRITE, "now": None, "say": {"properties": {"words": {}}}}
TOOLS: list[Tool] = [
    {"type": "function", "function": {"name": name, "parameters": parameters or {}}}
    for name, parameters in PARAMETERS.items()
]
ASK = [{"role": "user", "content": "Who are you?"}]


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer)


def call(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def state_after(state: GrammarMatcher, tokenizer: Tokenizer, text: str) -> str:
    """ "refused", or whether the grammar may or must end after `text`: "goes on", "may end", "ends"."""
    for token_id in [*tokenizer.encode(text, allow_special=True), STOP]:
        is_allowed = bool(state.mask()[token_id // 32] >> np.uint32(token_id % 32) & 1)
        if token_id == STOP:
            return ("may end" if np.bitwise_count(state.mask()).sum() > 1 else "ends") if is_allowed else "goes on"
        if not is_allowed:
            return "refused"
        state.push(token_id)
    raise AssertionError


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (call("write", path="a", text="b"), "may end"),
        (call("write", path="a", lines="5", text="b", mode="at the end", options='{"é": true}'), "may end"),
        (call("write", path="a", text="b") + "\n" + call("now"), "may end"),
        (call("now"), "may end"),
        (call("say"), "may end"),
        (call("say", words=""), "may end"),
        (call("write", path="a", lines="five", text="b"), "refused"),
        (call("write", path="a", text="b", mode="old"), "refused"),
        (call("write", path="a", text="b", options='{"x": 1}'), "refused"),
        (call("write", path="a"), "refused"),
        (call("write", text="b", path="a"), "refused"),
        (call("now", x="1"), "refused"),
        (call("unknown"), "refused"),
        ("text " + call("now"), "refused"),
        (call("now") + " text", "refused"),
    ],
)
def test_calls_follow_the_schema(compiler: GrammarCompiler, tokenizer: Tokenizer, text: str, outcome: str) -> None:
    grammar = calls_grammar(PARAMETERS, "xml", at_most_one=False, required=True)
    assert state_after(compiler.matcher(grammar, [STOP]), tokenizer, text) == outcome


@pytest.mark.parametrize(
    "text",
    [
        "</parameter>",
        "\n</parameter>\n",
        "a\n</parameter>\n</function>\n<x>",
        "</tool_call> <tool_call>",
        "\n</parameter>\n<parameter=unknown>\n",
        '"quotes" \\ {"json": [1]} 🙂 é\n\n\t',
        "as in:\n" + call("now") + "\nand so on",
        "as in:\n" + call("other", x="1") + "\nand so on",
    ],
)
def test_strings_run_raw(compiler: GrammarCompiler, tokenizer: Tokenizer, text: str) -> None:
    grammar = calls_grammar(PARAMETERS, "xml", at_most_one=True, required=True)
    answer = call("write", path="p", text=text)
    assert state_after(compiler.matcher(grammar, [STOP]), tokenizer, answer) in ("ends", "may end")
    assert calls_of(answer) == [("write", {"path": "p", "text": text})]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["a", "\n", " ", "</parameter>", "</function>", "</tool_call>", "<tool_call>", "é"])))
def test_the_parser_reads_what_the_grammar_lets_through(
    compiler: GrammarCompiler, tokenizer: Tokenizer, pieces: list[str]
) -> None:
    text = "".join(pieces)
    grammar = calls_grammar(PARAMETERS, "xml", at_most_one=True, required=True)
    answer = call("write", path="p", text=text)
    if state_after(compiler.matcher(grammar, [STOP]), tokenizer, answer) != "refused":
        assert calls_of(answer) == [("write", {"path": "p", "text": text})]


def calls_of(answer: str, tools: Mapping[str, Mapping[str, object] | None] = PARAMETERS) -> list[tuple[str, object]]:
    parser = ReplyParser(inside=False, tools=tools)
    deltas = [*parser.push(answer).tool_calls, *parser.flush().tool_calls]
    names = [delta.name for delta in deltas if delta.name]
    texts = ["".join(d.arguments for d in deltas if d.index == index) for index in range(len(names))]
    return [(name, json.loads(text)) for name, text in zip(names, texts, strict=True)]


NODE = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["n"],
    "additionalProperties": False,
}
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
LINE = {"$id": "https://example.com/line", "properties": {"from": POINT, "to": {"$ref": "#/properties/from"}}}
COLOUR = {"type": "string", "enum": ["red", "dark red", "é\n🙂"]}
PAINT = {
    "$ref": "#/$defs/Paint",
    "$defs": {
        "Colour": COLOUR,
        "Paint": {
            "type": "object",
            "properties": {
                "a": {"$ref": "#/$defs/Colour"},
                "b": {"anyOf": [{"$ref": "#/$defs/Colour"}, {"type": "null"}]},
                "c": {"allOf": [{"$ref": "#/$defs/Colour"}], "default": "red"},
                "d": {"oneOf": [{"const": "on"}, {"const": True}]},
            },
            "required": ["a"],
        },
    },
}


@pytest.mark.parametrize(
    ("schema", "values", "outcome"),
    [
        (NODE, {"n": "1", "next": '{"n": 2, "next": {"n": 3, "next": null}}'}, "ends"),
        (NODE, {"n": "1", "next": '{"n": "2"}'}, "refused"),
        (NODE, {"n": "1", "next": "2"}, "refused"),
        (LINE, {"from": '{"x": 1}', "to": '{"x": 2}'}, "ends"),
        (LINE, {"from": '{"x": 1}', "to": '{"y": 2}'}, "refused"),
        (PAINT, {"a": "dark red", "b": "null", "c": "é\n🙂", "d": "true"}, "ends"),
        (PAINT, {"a": "red", "b": "red", "d": "on"}, "ends"),
        (PAINT, {"a": "blue"}, "refused"),
        (PAINT, {"a": "null"}, "refused"),
        (PAINT, {"a": "red", "b": "blue"}, "refused"),
        (PAINT, {"a": "red", "c": "blue"}, "refused"),
        (PAINT, {"a": "red", "d": "false"}, "refused"),
        (PAINT, {"b": "red"}, "refused"),
    ],
)
def test_what_a_schema_refers_to_is_enforced(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: dict[str, object], values: dict[str, str], outcome: str
) -> None:
    grammar = calls_grammar({"f": schema}, "xml", at_most_one=True, required=True)
    answer = call("f", **values)
    assert state_after(compiler.matcher(grammar, [STOP]), tokenizer, answer) == outcome
    if outcome == "ends":
        ((_, arguments),) = calls_of(answer, {"f": schema})
        jsonschema.validate(arguments, schema)


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "anyOf"),
        ({"properties": {"a": {}}, "allOf": [{"required": ["a"]}]}, "allOf"),
        ({"properties": {"a": {"type": "integer"}}, "required": ["b"]}, "required"),
        ({"minProperties": 1}, "minProperties"),
        ({"additionalProperties": {"type": "integer"}}, "additionalProperties"),
        ({"patternProperties": {"^x": {"type": "integer"}}}, "patternProperties"),
    ],
)
def test_rules_between_parameters_are_refused_in_xml(schema: dict[str, object], word: str) -> None:
    with pytest.raises(GrammarError, match=f"'f' cannot be enforced.*'{word}'") as caught:
        calls_grammar({"f": schema}, "xml", at_most_one=True, required=True)
    assert caught.value.schema_path == f"#/{word}"
    calls_grammar({"f": schema}, "json", at_most_one=True, required=True)


def test_free_text_and_at_most_one_call(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    grammar = calls_grammar(PARAMETERS, "xml", at_most_one=True, required=False)
    for text, outcome in (
        ("free text, even <tool_ca", "may end"),
        ("text\n\n" + call("now"), "ends"),
        (call("now") + "\n" + call("now"), "refused"),
        ("text " + call("unknown"), "refused"),
    ):
        assert state_after(compiler.matcher(grammar, [STOP]), tokenizer, text) == outcome


def test_the_json_form(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    grammar = calls_grammar(PARAMETERS, "json", at_most_one=True, required=True)
    for text, outcome in (
        ('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', "ends"),
        ('<tool_call>\n{"name": "write", "arguments": {"path": "</tool_call>", "text": ""}}\n</tool_call>', "ends"),
        ('<tool_call>\n{"name": "write", "arguments": {"path": 5', "refused"),
        ('<tool_call>\n{"name": "unknown"', "refused"),
    ):
        assert state_after(compiler.matcher(grammar, [STOP]), tokenizer, text) == outcome


def test_a_bad_schema_of_a_tool_names_its_path() -> None:
    with pytest.raises(GrammarError, match="Invalid type") as caught:
        calls_grammar({"f": {"properties": {"a": {"type": "strin"}}}}, "xml", at_most_one=True, required=True)
    assert caught.value.schema_path == "#/properties/a"


@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("choice", ["required", "now", {"type": "function", "function": {"name": "now"}}])
def test_a_call_is_made_where_it_is_required(engine: Engine, choice: object, reasoning: bool) -> None:
    tools = TOOLS[1:] if choice == "required" else TOOLS
    options = {"tools": tools, "tool_choice": choice, "reasoning": reasoning, "max_tokens": 250}
    reply = engine.chat(ASK, temperature=0, parallel_tool_calls=False, **options)  # type: ignore[call-overload]
    (made,) = reply.tool_calls
    assert made.name in ("now", "say") if choice == "required" else made.name == "now"
    assert reply.finish_reason == "tool_calls" and not reply.content
    assert (reply.reasoning is not None) == reasoning and "<tool_call>" not in (reply.reasoning or "")
    streamed = fold_chat(engine.stream_chat(ASK, temperature=0, parallel_tool_calls=False, **options))  # type: ignore[call-overload]
    assert [(c.name, c.arguments_json) for c in streamed.tool_calls] == [(made.name, made.arguments_json)]


def test_sampled_calls_have_valid_arguments(engine: Engine) -> None:
    parameters = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "unit": {"enum": ["m", "km"]}, "exact": {"type": "boolean"}},
        "required": ["n", "exact"],
        "additionalProperties": False,
    }
    tools: list[Tool] = [{"type": "function", "function": {"name": "measure", "parameters": parameters}}]
    for seed in range(4):
        reply = engine.chat(
            ASK, tools=tools, tool_choice="required", parallel_tool_calls=False, reasoning=False, temperature=1.5,
            seed=seed, max_tokens=120,
        )  # fmt: skip
        if reply.finish_reason == "tool_calls":
            jsonschema.validate(reply.tool_calls[0].arguments, parameters)
        else:
            assert reply.finish_reason == "length"  # an endless number


@pytest.fixture(scope="module")
def wide_engine() -> Iterator[Engine]:
    with Engine("lily-nano", progress=False) as engine:
        yield engine


def test_enforced_calls_are_as_right_as_free_ones(wide_engine: Engine, nano_folder: Path) -> None:
    """lily-nano's held-out calls: each follows its schema, and no fewer are right than in free greedy text."""
    items = [json.loads(line) for line in (nano_folder / "eval.jsonl").read_text().splitlines()]
    items = [item for item in items if item["check"] == "call"]
    right = {"auto": 0, "strict": 0, "required": 0}
    for item in items:
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in item["tools"]}
        strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in item["tools"]]
        for way in right:
            reply = wide_engine.chat(
                item["messages"],
                tools=strict if way == "strict" else item["tools"],
                tool_choice="required" if way == "required" else "auto",
                reasoning=item["enable_thinking"],
                temperature=0,
                max_tokens=200,
            )
            for made in reply.tool_calls if way != "auto" else ():
                jsonschema.validate(made.arguments, schemas[made.name])
            calls = [{"name": made.name, "arguments": made.arguments} for made in reply.tool_calls]
            right[way] += calls == [item["expected_call"]]
    assert len(items) == 10 and right["auto"] >= 9
    assert right["strict"] >= right["auto"] and right["required"] >= right["auto"]


def test_none_makes_no_call_although_the_tools_are_shown(engine: Engine, nano_folder: Path) -> None:
    items = map(json.loads, (nano_folder / "eval.jsonl").read_text().splitlines())
    item = next(item for item in items if item["check"] == "call" and not item["enable_thinking"])
    options = {"tools": item["tools"], "reasoning": False, "temperature": 0, "max_tokens": 60}
    assert engine.chat(item["messages"], **options).tool_calls  # type: ignore[call-overload]
    reply = engine.chat(item["messages"], tool_choice="none", **options)  # type: ignore[call-overload]
    assert not reply.tool_calls and "<tool_call>" not in reply.content
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in item["tools"]]
    for more in ({"parallel_tool_calls": False}, {"tools": strict}, {"tool_choice": "auto"}):
        reply = engine.chat(item["messages"], **(options | more))  # type: ignore[call-overload]
        assert [(c.name, c.arguments) for c in reply.tool_calls] == [
            (item["expected_call"]["name"], item["expected_call"]["arguments"])
        ]


def test_a_response_format_leaves_tools_callable(engine: Engine) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "none needed"}}}
    options = {"response_format": form, "reasoning": False, "temperature": 0, "max_tokens": 100}
    reply = engine.chat(ASK, tools=TOOLS[1:2], **options)  # type: ignore[call-overload]
    assert reply.content == '"none needed"' or [call.name for call in reply.tool_calls] == ["now"]
    assert engine.chat(ASK, tools=TOOLS, tool_choice="none", **options).content == '"none needed"'  # type: ignore[call-overload]


def test_response_formats(engine: Engine) -> None:
    free = engine.chat(ASK, reasoning=False, temperature=0)
    assert engine.chat(ASK, reasoning=False, temperature=0, response_format={"type": "text"}).content == free.content
    reply = engine.chat(
        ASK, reasoning=False, temperature=0, response_format={"type": "json_object"}, max_tokens=300, regex=None
    )
    assert reply.content.startswith("{") and (
        reply.finish_reason == "length" or isinstance(json.loads(reply.content), dict)
    )


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"tool_choice": "required"}, ToolCallError, "no tools are given"),
        (
            {"tools": TOOLS, "tool_choice": "any"},
            ToolCallError,
            "names 'any', but the tools are: 'write', 'now', 'say'",
        ),
        ({"tools": TOOLS, "tool_choice": 5}, ToolCallError, "the name of a tool or"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            ToolCallError,
            "names 'x'.*'now'",
        ),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, TypeError, "parallel_tool_calls"),
        ({"tools": TOOLS, "tool_choice": "required", "regex": "a"}, ValueError, "another grammar"),
        ({"response_format": {"type": "xml"}}, ValueError, "'json_object'"),
        ({"response_format": {"type": "json_schema"}}, ValueError, "needs"),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, ValueError, "use one of them"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}}, GrammarError, "at #:"),
    ],
)
def test_contradictions_are_refused(
    engine: Engine, options: dict[str, object], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        engine.chat(ASK, **options)  # type: ignore[call-overload]


def test_a_template_without_calls_cannot_enforce_them() -> None:
    with (
        Engine("lily-nano", max_context=256, progress=False, chat_template="{{ messages[0].content }}:") as engine,
        pytest.raises(ToolCallError, match="writes no tool calls"),
    ):
        engine.chat(ASK, tools=TOOLS, tool_choice="required")


def test_a_grammar_that_would_be_too_long_is_refused_before_it_is_made() -> None:
    properties = {f"parameter_{i}": {"$ref": "#/$defs/word"} for i in range(1000)}
    schema = {"properties": properties, "$defs": {"word": {"type": "integer"}}}
    with pytest.raises(GrammarError, match=r"calls of 'many' would have [\d,]+ characters, more than 4,000,000"):
        calls_grammar({"many": schema}, "xml", at_most_one=True, required=True)
    schema["properties"] = dict(list(properties.items())[:200])
    tools = {f"tool_{i}": schema for i in range(2)}
    with pytest.raises(GrammarError, match=r"calls up to 'tool_1' would have"):
        calls_grammar(tools, "xml", at_most_one=True, required=True)
