"""Grammars without a model: what the masks allow, and what is refused."""

from __future__ import annotations

import builtins
import json
import random
import sys

import jsonschema
import numpy as np
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lily import GrammarError, SamplingParams
from lily.grammar import Grammar, GrammarCompiler, GrammarMatcher, json_grammar, lark_grammar, params_grammar
from lily.tokenizer import Tokenizer
from lily.tool_grammar import calls_grammar

STOP = 4072  # <|im_end|>


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer)


def matcher(compiler: GrammarCompiler, params: SamplingParams, *stops: int) -> GrammarMatcher:
    grammar = params_grammar(params)
    assert grammar is not None
    return compiler.matcher(grammar, stops or (STOP,))


def allowed(state: GrammarMatcher) -> list[int]:
    return np.flatnonzero(np.unpackbits(state.mask().view(np.uint8), bitorder="little")).tolist()


def feed(state: GrammarMatcher, tokenizer: Tokenizer, text: str) -> None:
    for token_id in tokenizer.encode(text, allow_special=True):
        assert token_id in allowed(state)
        state.push(token_id)


def walk(state: GrammarMatcher, tokenizer: Tokenizer, rng: random.Random, free_tokens: int) -> bytes:
    """A random text of the grammar: any allowed tokens at first, then those that close what is open."""
    closers = [tokenizer.encode(mark)[0] for mark in ('"', "}", "]")]
    text = b""
    for count in range(1000):
        choices = allowed(state)
        if state.finished or (STOP in choices and count >= free_tokens):
            return text
        choices = [token_id for token_id in choices if token_id != STOP]
        preferred = [token_id for token_id in closers if token_id in choices] if count >= free_tokens else []
        token_id = (preferred or [rng.choice(choices)])[0]
        text += tokenizer.id_to_bytes[token_id]
        state.push(token_id)
    raise AssertionError(f"no end after {text!r}")


def schemas() -> st.SearchStrategy[dict[str, object]]:
    small = st.integers(0, 4)
    leaves: st.SearchStrategy[dict[str, object]] = st.one_of(
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "number"}, {"const": "é 🙂\n"}, {"const": 7}]),
        st.builds(lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more}, small, small),
        st.builds(lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more}, small, small),
        st.sampled_from([{"type": "string", "pattern": "^[a-c]+-[0-9]{2}$"}, {"type": "string", "format": "date"}]),
        st.lists(st.text(max_size=4), min_size=1, max_size=3, unique=True).map(lambda values: {"enum": values}),
    )
    names = st.sampled_from(["a", "b", 'say "hi"', "ключ", "a/b"])

    def objects(children: st.SearchStrategy[dict[str, object]]) -> st.SearchStrategy[dict[str, object]]:
        def build(properties: dict[str, object], required: list[str], extra: bool) -> dict[str, object]:
            required = [name for name in required if name in properties]
            rest = {} if extra else {"additionalProperties": False}
            return {"type": "object", "properties": properties, "required": required, **rest}

        return st.builds(
            build, st.dictionaries(names, children, max_size=3), st.lists(names, unique=True), st.booleans()
        )

    def nested(children: st.SearchStrategy[dict[str, object]]) -> st.SearchStrategy[dict[str, object]]:
        return st.one_of(
            objects(children),
            st.builds(
                lambda items, n: {"type": "array", "items": items, "minItems": n, "maxItems": n + 2}, children, small
            ),
            st.lists(children, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
        )

    return st.recursive(leaves, nested, max_leaves=6)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schema=schemas(), seed=st.integers(0, 2**32), free_tokens=st.sampled_from([0, 3, 40]))
def test_every_text_of_a_schemas_grammar_validates(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: dict[str, object], seed: int, free_tokens: int
) -> None:
    state = matcher(compiler, SamplingParams(json_schema=schema))
    text = walk(state, tokenizer, random.Random(seed), free_tokens)
    jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.FormatChecker())


def test_no_special_token_is_part_of_a_string(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    state = matcher(compiler, SamplingParams(json_schema={"type": "string"}))
    feed(state, tokenizer, '"a')
    known = [text for text in tokenizer.id_to_bytes if text != "\ufffd".encode()]
    choices = set(allowed(state))
    assert not choices & tokenizer.special_ids and len(choices) < len(known)
    feed(state, tokenizer, '"')
    assert allowed(state) == [STOP] and state.finished


def test_stop_ids_are_allowed_exactly_at_an_end(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    (seven,) = tokenizer.encode("7")
    state = matcher(compiler, SamplingParams(regex="[0-9]{2,3}"), STOP, seven)
    assert STOP not in allowed(state) and seven not in allowed(state)
    feed(state, tokenizer, "12")
    assert STOP in allowed(state) and seven in allowed(state) and not state.finished
    feed(state, tokenizer, "3")
    assert state.finished


def test_choice_and_lark(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    for options in (["a", "ab", 'say "hi"\n'], ["é🙂"], ["\\d+"]):
        for option in options:
            state = matcher(compiler, SamplingParams(choice=options))
            feed(state, tokenizer, option)
            assert STOP in allowed(state)
    state = matcher(compiler, SamplingParams(grammar='start: "x" NUMBER\nNUMBER: /[0-9]+/'))
    feed(state, tokenizer, "x42")
    assert STOP in allowed(state)


def test_after_thinking_the_block_is_free_and_must_close(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    state = compiler.matcher(json_grammar('{"type": "integer"}').after_thinking(), [STOP])
    feed(state, tokenizer, 'any text, even {"json": 1} and </thin')
    assert STOP not in allowed(state)
    assert tokenizer.added_tokens["<tool_call>"] not in allowed(state)
    feed(state, tokenizer, "</think>\n\n12")
    assert STOP in allowed(state)


TAGS = ["</think>", "<tool_call>", "\n\n", "<", "</", "thi", "nk", ">", "a", "é", '{"x": 1}', "<tool_", "call", "<<"]


@settings(max_examples=60, deadline=None)
@given(pieces=st.lists(st.sampled_from(TAGS), max_size=12), thinks=st.booleans(), one_by_one=st.booleans())
def test_masks_of_free_text_are_those_of_the_library(
    compiler: GrammarCompiler, tokenizer: Tokenizer, pieces: list[str], thinks: bool, one_by_one: bool
) -> None:
    calls = calls_grammar({"f": None}, "xml", at_most_one=False, required=False)
    grammar = calls.after_thinking() if thinks else calls
    assert grammar.free_until
    kept, computed = compiler.matcher(grammar, [STOP]), compiler.matcher(Grammar(grammar.source), [STOP])
    texts = pieces if one_by_one else ["".join(pieces)]
    for token_id in [token_id for text in texts for token_id in tokenizer.encode(text, allow_special=one_by_one)]:
        words = kept.mask()
        np.testing.assert_array_equal(words, computed.mask())
        if not words[token_id // 32] >> np.uint32(token_id % 32) & 1:
            return
        kept.push(token_id)
        computed.push(token_id)
    np.testing.assert_array_equal(kept.mask(), computed.mask())


def test_a_compiled_grammar_is_not_shared_between_requests(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    grammar = lark_grammar('start: "ab"')
    first, second = compiler.matcher(grammar, [STOP]), compiler.matcher(grammar, [STOP])
    feed(first, tokenizer, "ab")
    assert first.finished and not second.finished
    for n in range(40):
        compiler.matcher(lark_grammar(f'start: "{n}"'), [STOP])
    feed(compiler.matcher(grammar, [STOP]), tokenizer, "ab")


@pytest.mark.parametrize(
    ("schema", "path", "reason"),
    [
        ({"type": "strin"}, "#", "Invalid type: strin"),
        ({"properties": {"a/b": {"items": {"not": {}}}}}, "#/properties/a~1b/items", "not"),
        ({"anyOf": [{"type": "null"}, {"type": "array", "uniqueItems": True}]}, "#/anyOf/1", "uniqueItems"),
        ({"$defs": {"x": {"type": "string", "pattern": "(?<=a)b"}}, "$ref": "#/$defs/x"}, "#/$defs/x", "look-around"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}, "$defs": {}}, "#/properties/a", "does not exist"),
        ({"items": {"const": {"id": [2**53 + 1]}}}, "#/items", "const holds 9007199254740993"),
        ({"items": [{"const": 2**53 + 1}]}, "#/items/0", "const holds"),
        ({"items": [], "additionalItems": {"const": 2**53 + 1}}, "#/additionalItems", "const holds"),
        ({"items": {"$ref": "#/x/a%20b"}, "x": {"a b": {"enum": [2**53 + 1]}}}, "#/x/a%20b", "enum holds"),
        ({"enum": ["a", -(2**64)]}, "#", "enum holds -18446744073709551616"),
        ({"anyOf": [{"type": "integer", "minimum": 10**20}]}, "#/anyOf/0", "minimum is 100000000000000000000,"),
        ({"type": "integer", "maximum": 2**53 + 3}, "#", "maximum is 9007199254740995,"),
        ({"type": "integer", "minimum": -(2**63)}, "#", "leave it out"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "#", "would let 0 through"),
    ],
)
def test_a_schema_error_names_its_path(schema: object, path: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason) as caught:
        json_grammar(json.dumps(schema))
    assert caught.value.schema_path == path and f"at {path}:" in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "inside", "outside"),
    [
        ({"type": "integer", "maximum": 2**63 - 1}, [2**63 - 1, -(10**30)], [2**63]),
        ({"type": "integer", "minimum": -(2**53), "maximum": 2**53}, [-(2**53), 2**53], [-(2**53) - 1, 2**53 + 1]),
        ({"type": "integer", "minimum": -(2**60), "maximum": 2**60}, [-(2**60), 2**60], [-(2**60) - 1, 2**60 + 1]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, [1, 0.01], [0, "0.0", 1.5]),
        ({"type": "number", "exclusiveMinimum": 0}, [7, 0.01], [0, "0.0"]),
        ({"const": 2**53}, [2**53], [2**53 - 1]),
    ],
)
def test_large_numbers_and_excluded_ones(
    compiler: GrammarCompiler, tokenizer: Tokenizer, schema: object, inside: list[object], outside: list[object]
) -> None:
    for value in [*inside, *outside]:
        state, is_allowed = compiler.matcher(json_grammar(json.dumps(schema)), [STOP]), True
        for token_id in [*tokenizer.encode(str(value)), STOP]:
            is_allowed = is_allowed and token_id in allowed(state)
            if is_allowed and token_id != STOP:
                state.push(token_id)
        assert is_allowed == (value in inside), value


@pytest.mark.parametrize(
    "params", [SamplingParams(regex="(a"), SamplingParams(regex="a(?=b)"), SamplingParams(grammar="start: nothing")]
)
def test_other_grammar_errors(params: SamplingParams) -> None:
    with pytest.raises(GrammarError) as caught:
        params_grammar(params)
    assert caught.value.schema_path is None and "\n" not in str(caught.value)
    if params.regex is not None:
        assert str(caught.value).startswith(f"the regex {params.regex!r} cannot be used: ")
        assert "start" not in str(caught.value)


def test_a_pydantic_class_is_a_schema(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    class Address(pydantic.BaseModel):
        city: str

    class Person(pydantic.BaseModel):
        name: str
        age: int | None = None
        homes: list[Address]

    state = matcher(compiler, SamplingParams(json_schema=Person))
    text = walk(state, tokenizer, random.Random(1), 5)
    assert isinstance(Person.model_validate_json(text), Person)


def test_without_llguidance_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def no_llguidance(name: str, *args: object) -> object:
        if name == "llguidance":
            raise ModuleNotFoundError(name)
        return real_import(name, *args)  # type: ignore[arg-type]

    monkeypatch.delitem(sys.modules, "llguidance", raising=False)
    monkeypatch.setattr(builtins, "__import__", no_llguidance)
    with pytest.raises(ImportError, match="pip install llguidance"):
        Grammar("start: A")
