"""lily-nano's held-out chats, greedy: as many right answers per family as the float32 reference gives (its README).

All of them on the CPU. Software Metal needs seconds for each: one of each family, all with `make soak`.
"""

import json
from collections import Counter

import hypothesis
import pytest

from lily import Engine
from tests.model.metal import require_metal

REFERENCE = {
    "extract": 20,
    "recall": 23,
    "lists": 22,
    "arith": 18,
    "units": 14,
    "tools": 22,
    "chat": 23,
    "memory": 23,
    "code_task": 23,
}


def is_right(item, reply):
    """Whether the reply holds the content, or the only call, that the item wants."""
    if item["check"] == "exact":
        return reply.content.strip() == item["expected"].strip()
    if item["check"] == "json":
        try:
            return json.loads(reply.content) == json.loads(item["expected"])
        except ValueError:
            return False
    wanted = item["expected_call"]
    return [(call.name, call.arguments) for call in reply.tool_calls] == [(wanted["name"], wanted["arguments"])]


def items_of(lily_nano):
    return [json.loads(line) for line in (lily_nano / "eval.jsonl").read_text(encoding="utf-8").splitlines()]


def answer(engine, item):
    return engine.chat(
        item["messages"], tools=item["tools"], reasoning=item["enable_thinking"], temperature=0, max_tokens=400
    )


SOAK = hypothesis.settings().max_examples > hypothesis.settings.get_profile("default").max_examples


@pytest.fixture(scope="module", params=["cpu", "metal"] if SOAK else ["cpu"])
def right_answers(request, lily_nano):
    if request.param == "metal":
        require_metal()
    right = Counter()
    with Engine(lily_nano, device=request.param, max_context=4096, memory_limit="8GiB") as engine:
        for item in items_of(lily_nano):
            right[item["family"]] += is_right(item, answer(engine, item))
    return right


@pytest.mark.parametrize("family", REFERENCE)
def test_accuracy_equals_the_reference(right_answers, family):
    assert abs(right_answers[family] - REFERENCE[family]) <= 1


def test_metal_answers_as_the_cpu_does(lily_nano):
    require_metal()
    firsts = {item["family"]: item for item in reversed(items_of(lily_nano))}
    assert firsts.keys() == REFERENCE.keys()
    options = {"max_context": 1024, "memory_limit": "8GiB", "progress": False}
    with Engine(lily_nano, device="cpu", **options) as cpu, Engine(lily_nano, device="metal", **options) as metal:
        for item in firsts.values():
            expected, got = answer(cpu, item), answer(metal, item)
            assert (got.content, got.tool_calls, got.usage) == (expected.content, expected.tool_calls, expected.usage)
