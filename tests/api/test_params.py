from __future__ import annotations

import dataclasses
import math
import pickle

import pytest

from lily import GrammarError, SamplingParams
from lily.params import SamplingOverrides, resolve

DEFAULTS = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}


def test_overrides_and_fields_are_the_same_names() -> None:
    assert set(SamplingOverrides.__annotations__) == {f.name for f in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("temp", "temperature"),
        ("max_new_tokens", "max_tokens"),
        ("num_predict", "max_tokens"),
        ("repeat_penalty", "repetition_penalty"),
        ("temprature", "temperature"),
        ("top_P", "top_p"),
    ],
)
def test_unknown_names_suggest_the_right_one(name: str, right: str) -> None:
    with pytest.raises(TypeError, match=f"{name!r}; did you mean {right!r}"):
        SamplingParams(**{name: 1})
    with pytest.raises(TypeError, match=f"did you mean {right!r}"):
        SamplingParams().merged({name: 1})  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "bad", "good"),
    [
        ("temperature", [-0.1, math.nan, math.inf], [0, 0.0, 5.0]),
        ("top_p", [0.0, 1.01, -1.0], [1e-6, 1]),
        ("top_k", [-2], [-1, 0, 1, 100_000]),
        ("min_p", [-0.1, 1.5], [0, 1]),
        ("presence_penalty", [-2.1, 2.1], [-2, 2]),
        ("frequency_penalty", [-2.1, 2.1], [-2, 2]),
        ("repetition_penalty", [0, -1.0], [0.5, 3.0]),
        ("seed", [-1, 2**64], [0, 2**64 - 1]),
        ("max_tokens", [0, -5], [1]),
        ("min_tokens", [-1], [0, 7]),
        ("logprobs", [-1, 21], [0, 20]),
        ("stop", [[""], ""], ["x", ["a", "b"]]),
        ("stop_token_ids", [[-1]], [[0, 3]]),
        ("logit_bias", [{-1: 0.0}, {3: math.nan}, {3: math.inf}], [{3: -math.inf}, {}]),
    ],
)
def test_ranges(name: str, bad: list[object], good: list[object]) -> None:
    for value in bad:
        with pytest.raises(ValueError, match=name):
            SamplingParams(**{name: value})
    for value in good:
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", "1"),
        ("temperature", True),
        ("top_k", 1.0),
        ("max_tokens", True),
        ("ignore_eos", 1),
        ("stop", [1]),
        ("min_tokens", None),
    ],
)
def test_wrong_types(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=name):
        SamplingParams(**{name: value})


def test_positional_arguments_are_refused() -> None:
    with pytest.raises(TypeError):
        SamplingParams(0.7)  # type: ignore[misc]


def test_min_tokens_above_max_tokens_names_both() -> None:
    with pytest.raises(ValueError, match=r"min_tokens is 9.*max_tokens 8"):
        SamplingParams(min_tokens=9, max_tokens=8)


def test_a_given_field_wins_over_the_checkpoint_over_neutral() -> None:
    resolved = resolve(SamplingParams(temperature=0.9, top_k=-1), DEFAULTS)
    assert (resolved.temperature, resolved.top_k, resolved.top_p, resolved.min_p) == (0.9, 0, 0.95, 0.0)
    assert resolved.repetition_penalty == 1.0 and not resolved.has_penalties
    assert resolve(SamplingParams(), {}).temperature == 1.0
    assert resolve(SamplingParams(presence_penalty=0.5), {}).has_penalties


def test_greedy() -> None:
    assert resolve(SamplingParams(temperature=0), DEFAULTS).temperature == 0.0
    assert resolve(SamplingParams(), {"temperature": 0.0}).temperature == 0.0
    assert resolve(SamplingParams(temperature=0.3), {"temperature": 0.0}).temperature == 0.3


def test_repr_shows_what_was_given_and_what_is_default() -> None:
    assert repr(SamplingParams()) == "SamplingParams(others: the checkpoint's defaults)"
    assert repr(SamplingParams(seed=3, stop="x")).startswith("SamplingParams(seed=3, stop=('x',); others")
    resolved = repr(resolve(SamplingParams(temperature=0.9), DEFAULTS))
    assert "temperature=0.9, top_p=0.95 (default), top_k=20 (default)" in resolved


def test_merging_replaces_only_what_is_named() -> None:
    params = SamplingParams(temperature=0.5, max_tokens=7)
    assert params.merged({"max_tokens": None}) == SamplingParams(temperature=0.5)
    assert params.merged({}) is params
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.seed = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(params)) == params


def test_structured_output_is_checked_when_it_is_given() -> None:
    assert SamplingParams(json_schema={"type": "null"}).json_schema == '{"type": "null"}'
    assert SamplingParams(json_schema=' {"type":"null"}').json_schema == '{"type": "null"}'
    assert SamplingParams(choice=["a", "b"]).choice == ("a", "b")
    for options, error, match in (
        ({"json_schema": "{"}, GrammarError, "not JSON"),
        ({"json_schema": "[]"}, GrammarError, "must hold an object"),
        ({"json_schema": {"const": float("nan")}}, GrammarError, "written as JSON"),
        ({"json_schema": 5}, TypeError, "pydantic"),
        ({"json_schema": int}, TypeError, "pydantic"),
        ({"regex": ""}, ValueError, "regex is empty"),
        ({"grammar": b"x"}, TypeError, "grammar must be a string"),
        ({"choice": []}, ValueError, "one or more"),
        ({"choice": "ab"}, ValueError, "one or more"),
        ({"choice": ["a", ""]}, ValueError, "not empty"),
        ({"choice": ["a"], "regex": "a"}, ValueError, "regex and choice are given"),
        ({"prompt_logprobs": 21}, ValueError, "at most 20"),
        ({"thinking_token_budget": -1}, ValueError, "at least 0"),
        ({"logit_bias": dict.fromkeys(range(901), 1.0)}, ValueError, "901 entries; at most 900"),
        ({"logit_bias": [1]}, TypeError, "map token ids"),
        ({"stop_token_ids": list(range(101))}, ValueError, "101 ids; at most 100"),
    ):
        with pytest.raises(error, match=match):
            SamplingParams(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["enable_thinking", "reasoning_effort"])
def test_names_that_belong_to_chat(name):
    with pytest.raises(TypeError, match=f"{name!r}; use the keyword reasoning of chat"):
        SamplingParams(**{name: True})


def test_stop_of_a_wrong_type():
    with pytest.raises(TypeError, match="stop must be a string or a list of strings, not int"):
        SamplingParams(stop=3)
