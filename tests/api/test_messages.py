from __future__ import annotations

import pytest

from lily import ChatTemplateError
from lily.messages import template_messages

USER = {"role": "user", "content": "hi"}


def test_leading_instructions_become_one_system_message() -> None:
    messages = [{"role": "developer", "content": "A"}, {"role": "system", "content": "B"}, USER]
    assert template_messages(messages) == [{"role": "system", "content": "A\n\nB"}, USER]


def test_a_later_system_message_stays_where_it_is() -> None:
    messages = [USER, {"role": "system", "content": "late"}]
    assert template_messages(messages) == messages


def test_reasoning_is_found_under_both_names() -> None:
    for name in ("reasoning", "reasoning_content"):
        (message,) = template_messages([{"role": "assistant", "content": "x", name: "why"}])
        assert message["reasoning"] == message["reasoning_content"] == "why"
    (message,) = template_messages([{"role": "assistant", "content": "x", "reasoning": None}])
    assert "reasoning" not in message and "reasoning_content" not in message


def test_tool_arguments_may_be_json_text() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": [1, "é"]}'}}
    (message,) = template_messages([{"role": "assistant", "tool_calls": [call]}])
    assert message["content"] == ""
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {"a": [1, "é"]}}}]


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert template_messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "ab"}]


def call(arguments: object) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ({"role": "function", "content": "x"}, "role 'function'"),
        ({"content": "x"}, "role None"),
        ("text", "a str, not a dict"),
        ({"role": "user"}, "needs content"),
        ({"role": "user", "content": None}, "needs content"),
        ({"role": "assistant", "content": None}, "needs content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "type 'image_url'; only text"),
        ({"role": "user", "content": 5}, "not int"),
        (call("{broken"), "arguments of 'f' are not JSON"),
        (call("[1]"), "must be an object"),
        ({"role": "assistant", "tool_calls": [{"name": "f"}]}, "each tool call needs"),
        ({"role": "assistant", "content": "", "reasoning": "a", "reasoning_content": "b"}, "differ"),
    ],
)
def test_bad_messages_are_named(bad: object, match: str) -> None:
    with pytest.raises(ChatTemplateError, match=match) as caught:
        template_messages([USER, bad])  # type: ignore[list-item]
    assert caught.value.message_index == 1


@pytest.mark.parametrize(("bad", "given"), [([], "}$"), ("hi", "not str$"), (USER, "not dict$")])
def test_messages_must_be_a_list(bad: object, given: str) -> None:
    with pytest.raises(ChatTemplateError, match=f"must be a list .*{given}"):
        template_messages(bad)  # type: ignore[arg-type]
