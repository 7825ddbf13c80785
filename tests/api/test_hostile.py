"""What nobody should ask for gets an error that says so, before any work; nothing hangs and nothing is replaced."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lily import ChatTemplateError, Engine, GrammarError, SamplingParams, ToolCallError
from lily.grammar import GrammarCompiler, params_grammar
from lily.tokenizer import Tokenizer
from tests.gated import gated, wait_until

ASK = [{"role": "user", "content": "Hi"}]


def chained_schema(length: int) -> dict[str, Any]:
    """A schema that leads from one definition to the next."""
    named: dict[str, Any] = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(length)}
    return {"$defs": {**named, f"a{length}": {"type": "string"}}, "$ref": "#/$defs/a0"}


def chained_rules(length: int) -> str:
    return "start: a0\n" + "".join(f"a{n}: a{n + 1}\n" for n in range(length)) + f'a{length}: "x"\n'


def test_long_chains_of_rules_end_no_process(engine: Engine) -> None:
    assert engine.chat(ASK, reasoning=False, grammar=chained_rules(10_000), temperature=0, max_tokens=4).content == "x"
    reply = engine.chat(ASK, reasoning=False, json_schema=chained_schema(4_000), temperature=0, max_tokens=4)
    assert reply.content.startswith('"')
    for options in ({"grammar": chained_rules(30_000)}, {"json_schema": chained_schema(30_000)}):
        with pytest.raises(GrammarError, match=r"characters; at most 262144 are supported"):
            engine.chat(ASK, **options)


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = value
    return value


def call(arguments: object) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def tool(name: str = "f", **parameters: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}


def test_numbers_of_numpy_are_numbers() -> None:
    given: Any = {
        "temperature": np.float32(0.5),
        "top_k": np.int64(4),
        "seed": np.uint64(2**64 - 1),
        "max_tokens": np.int32(2),
        "stop_token_ids": np.array([1, 2]),
        "logit_bias": {np.int64(3): np.float64(1.5)},
    }
    plain = {"temperature": 0.5, "top_k": 4, "seed": 2**64 - 1, "max_tokens": 2, "stop_token_ids": [1, 2]}
    params = SamplingParams(**given)
    assert params == SamplingParams(**plain, logit_bias={3: 1.5})  # type: ignore[arg-type]
    assert type(params.seed) is int and type(params.temperature) is float


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"regex": "\ud800"}, ValueError, r"regex holds a lone surrogate \('\\ud800' at 0\)"),
        ({"grammar": 'start: "\udfff"'}, ValueError, "grammar holds a lone surrogate"),
        ({"choice": ["a", "b\ud800"]}, ValueError, "choice holds a lone surrogate"),
        ({"stop": ["a\ud800"]}, ValueError, "stop holds a lone surrogate"),
        ({"choice": 5}, ValueError, "choice must be a list"),
        ({"stop": {"a": 1}}, TypeError, "stop must be a string or a list of strings, not dict"),
        ({"stop_token_ids": None}, TypeError, "stop_token_ids must be a list of token ids, not NoneType"),
        ({"stop_token_ids": [np.bool_(True)]}, TypeError, "must be an integer"),
        ({"json_schema": {"const": "\ud800"}}, GrammarError, "cannot be written as JSON"),
        ({"json_schema": {"a": nested(5000)}}, GrammarError, "nested too deeply"),
        ({"json_schema": cyclic()}, GrammarError, "cannot be written as JSON: Circular"),
        ({"json_schema": '{"a":' * 100_000}, GrammarError, "nested too deeply"),
    ],
)
def test_params(options: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        SamplingParams(**options)


@pytest.mark.parametrize(
    ("schema", "match"),
    [
        (json.dumps({"type": "object", "properties": nested(200)}), "cannot be read: recursion limit"),
        ({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}, "uniqueItems"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}], "x-guidance": {"coerce_one_of": True}}, "oneOf"),
    ],
    ids=["deep", "lenient", "coerce"],
)
def test_schemas_that_cannot_be_enforced(engine: Engine, schema: Any, match: str) -> None:
    with pytest.raises(GrammarError, match=match):
        engine.generate("a", json_schema=schema, max_tokens=2)


def test_a_choice_of_many_texts(tokenizer: Tokenizer) -> None:
    texts = [f"label {n} of {n % 97}" for n in range(5000)]
    grammar = params_grammar(SamplingParams(choice=texts))
    assert grammar is not None
    matcher = GrammarCompiler(tokenizer).matcher(grammar, [4072])
    for token_id in tokenizer.encode(texts[-1]):
        assert matcher.mask()[token_id // 32] >> (token_id % 32) & 1
        matcher.push(token_id)
    assert matcher.finished


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        (iter(ASK), "must be a list"),
        ([*ASK, call("[" * 100_000), *ASK], "message 1 .*are not JSON"),
        ([*ASK, call(nested(5000)), *ASK], "message 1 .*cannot be written as JSON"),
        ([*ASK, call(cyclic()), *ASK], "message 1 .*cannot be written as JSON"),
        ([*ASK, call({"a": float("nan")}), *ASK], "message 1 .*cannot be written as JSON"),
        ([*ASK, call({"a": object()}), *ASK], "message 1 .*cannot be written as JSON"),
        ([{"role": "user", "content": "x", "more": cyclic()}], "nested too deeply, or contain themselves"),
        ([*ASK, {"role": "user", "content": "x\ud800"}], "message 1 holds a lone surrogate"),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            r"\(user\): content\[0\] .* field 'text' is missing",
        ),
    ],
    ids=["iterator", "open", "deep", "cyclic", "nan", "object", "field", "surrogate", "part"],
)
def test_messages(engine: Engine, messages: Any, match: str) -> None:
    with pytest.raises(ChatTemplateError, match=match):
        engine.chat(messages, max_tokens=1)


@pytest.mark.parametrize(
    ("description", "match"),
    [
        (tool(properties=nested(5000)), "nested too deeply"),
        (tool(properties=cyclic()), "cannot be written as JSON: Circular"),
        (tool(properties={"\ud800": {}}), "cannot be written as JSON"),
        (tool(default=float("inf")), "cannot be written as JSON"),
        (tool("a\x1b[31m"), "control characters"),
        (tool("a\x00"), "control characters"),
    ],
    ids=["deep", "cyclic", "surrogate", "infinity", "escape", "null"],
)
def test_tools(engine: Engine, description: Any, match: str) -> None:
    with pytest.raises(ToolCallError, match=match):
        engine.chat(ASK, tools=[description], max_tokens=1)


@pytest.mark.parametrize("name", ["a\n>b", "", "<a", "a "])
def test_parameters_that_a_call_in_xml_cannot_name(engine: Engine, name: str) -> None:
    described: Any = tool(properties={name: {"type": "string"}})
    engine.chat(ASK, tools=[described], max_tokens=1)
    with pytest.raises(GrammarError, match="no place for a parameter called") as caught:
        engine.chat(ASK, tools=[described], tool_choice="required", max_tokens=1)
    assert caught.value.schema_path == f"#/properties/{name}"


def test_a_tool_is_copied(engine: Engine) -> None:
    described: Any = tool(properties={5: {"type": "string"}}, required=["5"])  # as json.dumps writes the key
    reply = engine.chat(ASK, tools=[described], tool_choice="required", reasoning=False, temperature=0, max_tokens=60)
    assert reply.tool_calls and set(reply.tool_calls[0].arguments) <= {"5"}


def test_verbs_say_what_they_take(engine: Engine) -> None:
    bad: Any
    for bad in ({"temperature": 1}, "b", 5, {}):
        for verb in (lambda bad=bad: engine.generate("a", bad), lambda bad=bad: engine.chat(ASK, bad)):
            with pytest.raises(TypeError, match="params must be a SamplingParams, not"):
                verb()
    for bad in (["a"], [[1], [2]]):
        with pytest.raises(TypeError, match="a stream takes one prompt"):
            engine.stream(bad)
    for bad in (None, 5, {"a": 1}):
        with pytest.raises(TypeError, match="a prompt is text or token ids"):
            engine.stream(bad)
    with pytest.raises(TypeError, match="a prompt is text or token ids"):
        engine.generate(["a", None], max_tokens=1)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="decode takes sessions, not"):
        engine.decode([5], [1])  # type: ignore[list-item]
    for bad in (None, 5, "ab", []):
        with pytest.raises(ValueError, match="a list of one or more labels"):
            engine.score("a", bad)
    for bad in ([1.5], ["a"], 5):
        with pytest.raises(TypeError, match=r"cannot be interpreted as an integer|not iterable"):
            engine.detokenize(bad)
        with pytest.raises(TypeError, match="a flat sequence of integers"):
            engine.prefix_cache.explain(bad)
    with engine.session() as session, pytest.raises(TypeError, match="num_tokens must be an int"):
        session.truncate(1.5)  # type: ignore[arg-type]
    for bad in (5, "yes"):
        with pytest.raises(TypeError, match="progress must be True, False or a function"):
            Engine("lily-nano", progress=bad)


def test_one_bad_prompt_of_a_list_stops_all_before_they_start(engine: Engine) -> None:
    before = engine.prefix_cache.stats().query_tokens
    prompts: Any = ["One two three", "a" * 50_000]
    with pytest.raises(ValueError, match="context"):
        engine.generate(prompts, max_tokens=1)
    with pytest.raises(ValueError, match="context"):
        asyncio.run(engine.agenerate(prompts, max_tokens=1))
    assert engine.prefix_cache.stats().query_tokens == before


def test_a_session_is_saved_to_a_file_and_never_replaces_anything_else(engine: Engine, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with engine.prefill([1, 2]) as session:
        for path in (pipe, tmp_path):
            with pytest.raises(OSError, match="is saved to a file"):
                session.save(path)
    assert pipe.is_fifo() and list(tmp_path.iterdir()) == [pipe]


def test_a_task_cancelled_at_any_moment_frees_the_engine(engine: Engine) -> None:
    async def main() -> None:
        with gated(engine) as gate:
            for turns in (*range(12), 30, 100):
                gate.allow(10)  # none of them ends before it is cancelled
                task = asyncio.create_task(engine.achat(ASK, ignore_eos=True, temperature=0))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await engine.agenerate("One", ignore_eos=True)
        # A request that a pool thread still prepares is dropped when it is ready.
        await asyncio.to_thread(wait_until, lambda: engine._owner.call(lambda: len(engine._running)) == 0)
        assert (await engine.agenerate("One", max_tokens=1)).usage.completion_tokens == 1

    asyncio.run(main())
