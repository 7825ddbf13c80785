"""Structured output and thinking budgets of the real lily-nano."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from lily import ChatReply, Engine, GrammarError, SamplingParams
from lily.stream import fold_chat
from lily.thinking import BRIDGE

QUESTION = [{"role": "user", "content": "Sort these words: tiger, apple, moon, wheel"}]
SCHEMA = {
    "type": "object",
    "properties": {"first": {"enum": ["apple", "moon"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["first", "count"],
    "additionalProperties": False,
}


def both_ways(engine: Engine, **options: object) -> ChatReply:
    """The reply of `chat`, which must equal that of `stream_chat`."""
    reply = engine.chat(QUESTION, **options)  # type: ignore[call-overload]
    streamed = fold_chat(engine.stream_chat(QUESTION, **options))  # type: ignore[call-overload]
    assert (streamed.content, streamed.reasoning) == (reply.content, reply.reasoning)
    return reply


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("reasoning", [False, True])
def test_the_answer_validates_and_the_reasoning_holds_no_json(
    engine: Engine, reasoning: bool, temperature: float
) -> None:
    reply = both_ways(engine, reasoning=reasoning, temperature=temperature, seed=5, json_schema=SCHEMA, max_tokens=300)
    jsonschema.validate(json.loads(reply.content), SCHEMA)
    assert reply.finish_reason == "stop"
    assert (reply.reasoning is not None) == reasoning and "{" not in (reply.reasoning or "")


def test_a_budget_closes_the_think_block(engine: Engine) -> None:
    free = both_ways(engine, reasoning=True, temperature=0)
    bridge_tokens = len(engine.tokenize(BRIDGE, allow_special=True))
    assert free.reasoning is not None and free.usage.reasoning_tokens > 6
    for budget in (0, 1, 6):
        reply = both_ways(engine, reasoning=True, temperature=0, thinking_token_budget=budget)
        assert reply.reasoning is not None and reply.reasoning.endswith(BRIDGE.partition("<")[0].strip())
        assert reply.content == free.content and reply.finish_reason == "stop"
        assert budget < reply.usage.reasoning_tokens <= budget + bridge_tokens
    unused = both_ways(engine, reasoning=True, temperature=0, thinking_token_budget=500)
    assert (unused.reasoning, unused.content) == (free.reasoning, free.content)
    without = engine.chat(QUESTION, reasoning=False, temperature=0, thinking_token_budget=0)
    assert without.reasoning is None and without.content == free.content


def test_a_budget_of_sixteen_tokens(engine: Engine) -> None:
    close = engine.tokenizer.added_tokens["</think>"]
    stops = dict.fromkeys(engine.stop_token_ids, -1e9)
    bridge = engine.tokenize(BRIDGE, allow_special=True)
    # The model itself would never close the block, so all sixteen tokens are used.
    options = SamplingParams(temperature=0, logit_bias={close: -1e9, **stops}, max_tokens=16 + len(bridge) + 8)
    stream = engine.stream_chat(QUESTION, options, reasoning=16)
    token_ids = [chunk.token_id for chunk in stream]
    reply = stream.result()
    assert close not in token_ids[:16] and token_ids[16 : 16 + len(bridge)] == bridge
    assert reply.reasoning is not None and reply.reasoning.endswith(BRIDGE.partition("<")[0].strip())
    assert reply.content and "</think>" not in reply.content
    # The bridge counts, up to its closing tag.
    assert reply.usage.reasoning_tokens == 16 + bridge.index(close) + 1


def test_a_budget_and_a_schema_go_together(engine: Engine) -> None:
    reply = both_ways(engine, reasoning=True, temperature=0, thinking_token_budget=4, json_schema=SCHEMA)
    jsonschema.validate(json.loads(reply.content), SCHEMA)
    assert reply.reasoning is not None and "{" not in reply.reasoning


def test_a_forced_token_ignores_bias_and_penalties_count_it(engine: Engine) -> None:
    close = engine.tokenizer.added_tokens["</think>"]
    options = SamplingParams(temperature=0, thinking_token_budget=3, repetition_penalty=1.2, logit_bias={close: -1e9})
    reply = engine.chat(QUESTION, reasoning=True, params=options, max_tokens=60)
    assert reply.reasoning is not None and reply.usage.reasoning_tokens < 30


def test_regex_choice_and_lark(engine: Engine) -> None:
    assert engine.generate("The", choice=["yes", "no"], temperature=2).text in ("yes", "no")
    text = engine.generate("The", regex=r"\d{3}-\d{4}", temperature=2, seed=1)
    assert len(text.text) == 8 and text.text[3] == "-" and (text.finish_reason, text.stop_reason) == ("stop", None)
    assert engine.generate("The", grammar='start: "a" ("b" | "c")').text in ("ab", "ac")


def test_min_tokens_and_ignore_eos_reach_only_as_far_as_the_grammar(engine: Engine) -> None:
    open_end = {"regex": r"\d-\d*", "temperature": 0, "max_tokens": 24}
    eos = engine.stop_token_ids[0]
    longer = engine.generate("The", **open_end, min_tokens=12, logit_bias={eos: 1000.0})
    assert longer.token_ids[-1] == eos and len(longer.token_ids) == 13
    endless = engine.generate("The", **open_end, ignore_eos=True)
    assert endless.finish_reason == "length" and len(endless.token_ids) == 24
    complete = engine.generate("The", choice=["ab"], min_tokens=20, ignore_eos=True)
    assert complete.text == "ab" and complete.finish_reason == "stop"


def test_an_answer_that_is_complete_with_its_last_token_stopped(engine: Engine) -> None:
    length = len(engine.generate("The", choice=["true"], temperature=0).token_ids)
    assert engine.generate("The", choice=["true"], temperature=0, max_tokens=length).finish_reason == "stop"


def test_a_stop_string_ends_structured_output_too(engine: Engine) -> None:
    reply = engine.generate("The", regex=r"\d{3}-\d{4}", stop="-")
    assert len(reply.text) == 3 and reply.stop_reason == "-"


def test_a_stop_id_of_the_request_is_no_text(engine: Engine) -> None:
    (comma,) = engine.tokenize(",")
    reply = engine.generate("The", regex="[a-z]{3}(,[a-z]{3})?", stop_token_ids=[comma], logit_bias={comma: 1000.0})
    assert len(reply.text) == 3 and reply.stop_reason == comma


def test_grammar_errors_come_before_any_work(engine: Engine) -> None:
    with pytest.raises(GrammarError, match="Invalid type") as caught:
        engine.stream("x", json_schema={"type": "object", "properties": {"a": {"type": "strin"}}})
    assert caught.value.schema_path == "#/properties/a"


@pytest.fixture(scope="module")
def wide_engine() -> Iterator[Engine]:
    with Engine("lily-nano", progress=False) as engine:
        yield engine


def test_extraction_is_as_accurate_as_free_text(wide_engine: Engine, nano_folder: Path) -> None:
    items = [json.loads(line) for line in (nano_folder / "eval.jsonl").read_text().splitlines()]
    items = [item for item in items if item["family"] == "extract"]
    right = 0
    for item in items:
        expected = json.loads(item["expected"])
        properties = {  # null: what the document does not say
            name: {"type": ["integer" if isinstance(value, int) else "string", "null"]}
            for name, value in expected.items()
        }
        schema = {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}
        reply = wide_engine.chat(
            item["messages"],
            reasoning=item["enable_thinking"],
            response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
            temperature=0,
            max_tokens=150,
        )
        answer = json.loads(reply.content)
        jsonschema.validate(answer, schema)
        right += answer == expected
    assert right >= 20 and len(items) == 23
