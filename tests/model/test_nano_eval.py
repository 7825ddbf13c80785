"""lily-nano's held-out chats, greedy: as many right answers per family as the float32 reference gives (its README), on
the CPU and on Metal; on both the same answers, word for word."""

import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import lily
from lily import Engine
from tests.model.metal import require_metal
from tests.softmetal import control

EVAL = Path(lily.__file__).parent / "models/lily-nano/eval.jsonl"
ITEMS = [json.loads(line) for line in EVAL.read_text(encoding="utf-8").splitlines()]

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


def is_right(item, content, calls, *_):
    """Whether a reply holds the content, or the only call, that the item wants."""
    if item["check"] == "exact":
        return content.strip() == item["expected"].strip()
    if item["check"] == "json":
        try:
            return json.loads(content) == json.loads(item["expected"])
        except ValueError:
            return False
    wanted = item["expected_call"]
    return calls == [(wanted["name"], wanted["arguments"])]


def replies_to(items, device):
    """Content, tool calls, reasoning and token count for each item; a misuse that software Metal saw is an error."""
    with Engine("lily-nano", device=device, max_context=4096, memory_limit="8GiB", progress=False) as engine:
        replies = [
            engine.chat(
                item["messages"], tools=item["tools"], reasoning=item["enable_thinking"], temperature=0, max_tokens=400
            )
            for item in items
        ]
    assert not control.is_present() or control.take_reports() == []
    return [
        (r.content, [(call.name, call.arguments) for call in r.tool_calls], r.reasoning, r.usage.completion_tokens)
        for r in replies
    ]


@pytest.fixture(scope="module")
def on_cpu():
    return replies_to(ITEMS, "cpu")


@pytest.fixture(scope="module")
def on_metal():
    """Software Metal takes a second or two of one core for a chat: two processes have half of them each."""
    require_metal()
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        halves = [pool.submit(replies_to, ITEMS[part::2], "metal") for part in range(2)]
    replies = [None] * len(ITEMS)
    for part, half in enumerate(halves):
        replies[part::2] = half.result()
    return replies


@pytest.mark.parametrize("device", ["cpu", "metal"])
@pytest.mark.parametrize("family", REFERENCE)
def test_accuracy_equals_the_reference(request, device, family):
    replies = request.getfixturevalue(f"on_{device}")
    pairs = zip(ITEMS, replies, strict=True)
    right = sum(is_right(item, *reply) for item, reply in pairs if item["family"] == family)
    assert abs(right - REFERENCE[family]) <= 1


@pytest.mark.parametrize("family", REFERENCE)
def test_metal_answers_as_the_cpu_does(on_cpu, on_metal, family):
    for item, expected, got in zip(ITEMS, on_cpu, on_metal, strict=True):
        if item["family"] == family:
            assert got == expected, item["messages"]
