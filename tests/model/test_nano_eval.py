"""lily-nano's held-out chats, greedy: as many right answers per family as the float32 reference gives (its README)."""

import json
from collections import Counter

import pytest

from lily import Engine

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


@pytest.fixture(scope="module")
def right_answers(lily_nano):
    right = Counter()
    with Engine(lily_nano) as engine, open(lily_nano / "eval.jsonl", encoding="utf-8") as lines:
        for item in map(json.loads, lines):
            reply = engine.chat(
                item["messages"],
                tools=item["tools"],
                reasoning=item["enable_thinking"],
                temperature=0,
                max_tokens=400,
            )
            right[item["family"]] += is_right(item, reply)
    return right


@pytest.mark.parametrize("family", REFERENCE)
def test_accuracy_equals_the_reference(right_answers, family):
    assert abs(right_answers[family] - REFERENCE[family]) <= 1
