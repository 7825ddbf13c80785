"""The official client of Anthropic against a live server."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from lily.server.billing import without_billing_lines

from .live import ANSWER, Live, saying
from .test_openai_client import DOCUMENT, SCHEMA

ASK: Any = [{"role": "user", "content": "Who are you?"}]
GREEDY: dict[str, Any] = {"model": "lily-nano", "max_tokens": 256, "extra_body": {"temperature": 0}}
TOOL: Any = {
    "name": "get_order_status",
    "description": "Look up an order.",
    "input_schema": {
        "type": "object",
        "properties": {"order_id": {"type": "string", "description": "Number of the order"}},
        "required": ["order_id"],
    },
}
BILLING = "x-anthropic-billing-header: cc_version=2.1.114.{0}; cc_entrypoint=cli; cch={0};\n"


def test_message(anthropic_client: Anthropic) -> None:
    message = anthropic_client.messages.create(messages=ASK, **GREEDY)
    (block,) = message.content
    assert (block.type, block.text) == ("text", ANSWER)  # type: ignore[union-attr]
    assert (message.role, message.stop_reason, message.stop_sequence) == ("assistant", "end_turn", None)
    again = anthropic_client.messages.create(messages=ASK, **GREEDY)
    assert again.usage.input_tokens == 1  # the last token is computed, all others are cached
    total = again.usage.input_tokens + (again.usage.cache_read_input_tokens or 0)
    assert total == anthropic_client.messages.count_tokens(model="lily-nano", messages=ASK).input_tokens
    cut = anthropic_client.messages.create(messages=ASK, **GREEDY | {"max_tokens": 3})
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 3)
    stopped = anthropic_client.messages.create(messages=ASK, stop_sequences=[" small"], **GREEDY)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " small")


def test_stream(anthropic_client: Anthropic) -> None:
    with anthropic_client.messages.stream(messages=ASK, **GREEDY) as stream:
        assert "".join(stream.text_stream) == ANSWER
        final = stream.get_final_message()
    assert final.stop_reason == "end_turn" and final.usage.output_tokens > 10
    assert final.usage.input_tokens == 1 and (final.usage.cache_read_input_tokens or 0) > 10
    events = list(anthropic_client.messages.create(messages=ASK, stream=True, **GREEDY))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_thinking_is_off_until_asked_for_and_comes_in_its_own_block(anthropic_client: Anthropic) -> None:
    question: Any = [{"role": "user", "content": "Sort these words: tiger, apple, moon, wheel"}]
    options: dict[str, Any] = {"messages": question, "thinking": {"type": "enabled", "budget_tokens": 1024}, **GREEDY}
    whole = anthropic_client.messages.create(**options)
    thinking, text = whole.content
    assert thinking.type == "thinking" and thinking.signature
    assert thinking.thinking == "The smallest item is apple and the largest is wheel."
    assert text.type == "text" and text.text == "apple, moon, tiger, wheel"
    with anthropic_client.messages.stream(**options) as stream:
        streamed = stream.get_final_message()
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in whole.content]
    history = [*question, {"role": "assistant", "content": whole.content}, *ASK]
    longer = anthropic_client.messages.create(messages=history, **GREEDY)
    computed = whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0) + whole.usage.output_tokens
    assert (longer.usage.cache_read_input_tokens or 0) > computed - 4
    for off in ({}, {"thinking": {"type": "disabled"}}):
        assert [b.type for b in anthropic_client.messages.create(messages=question, **GREEDY, **off).content] == [
            "text"
        ]


def test_a_thinking_budget_closes_the_block(live: Live, anthropic_client: Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 4}
    question: Any = [{"role": "user", "content": "Sort these words: tiger, apple, moon, wheel"}]
    message = anthropic_client.messages.create(messages=question, thinking=thinking, **GREEDY)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert "That is enough thinking" in message.content[0].thinking  # type: ignore[union-attr]


@pytest.mark.parametrize("stream", [False, True])
def test_tools_over_several_rounds(anthropic_client: Anthropic, stream: bool) -> None:
    messages: list[Any] = []
    options: dict[str, Any] = {"tools": [TOOL], **GREEDY}
    for order, state in (("65195", "shipped"), ("30417", "done")):
        messages.append({"role": "user", "content": f"Where is my order {order}?"})
        if stream:
            with anthropic_client.messages.stream(messages=messages, **options) as events:
                message = events.get_final_message()
        else:
            message = anthropic_client.messages.create(messages=messages, **options)
        call: Any = message.content[-1]
        assert message.stop_reason == "tool_use" and call.type == "tool_use"
        assert (call.name, call.input) == ("get_order_status", {"order_id": order})
        messages.append({"role": "assistant", "content": message.content})
        result = json.dumps({"status": state, "id": int(order)})
        block = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": result}]}
        messages.append({"role": "user", "content": [block]})
        answer: Any = anthropic_client.messages.create(messages=messages, **options)
        assert state in answer.content[0].text
        messages.append({"role": "assistant", "content": answer.content})


def test_tool_choice_is_obeyed(anthropic_client: Anthropic) -> None:
    def ask(**choice: Any) -> list[str]:
        message = anthropic_client.messages.create(messages=ASK, tools=[TOOL], tool_choice=choice, **GREEDY)  # type: ignore[call-overload]
        return [block.type for block in message.content]

    assert ask(type="none") == ["text"]
    assert ask(type="any", disable_parallel_tool_use=True) == ["tool_use"]
    assert ask(type="tool", name="get_order_status", disable_parallel_tool_use=True) == ["tool_use"]


def test_structured_output(anthropic_client: Anthropic) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message: Any = anthropic_client.messages.create(
        messages=[{"role": "user", "content": DOCUMENT}], output_config=config, **GREEDY
    )
    assert json.loads(message.content[0].text) == {"city": "Rome"}


def test_prompts_that_differ_in_a_billing_line_only_share_their_prefix(anthropic_client: Anthropic) -> None:
    rules = "You look after the visitors of a library. Answer in one short sentence."
    for make in (
        lambda line: line + rules,
        lambda line: [{"type": "text", "text": line.strip()}, {"type": "text", "text": rules}],
    ):
        usages = [
            anthropic_client.messages.create(messages=ASK, system=make(BILLING.format(stamp)), **GREEDY).usage
            for stamp in ("7b4", "eb6")
        ]
        plain = anthropic_client.messages.count_tokens(messages=ASK, system=rules, model="lily-nano").input_tokens
        assert usages[1].cache_read_input_tokens == plain - 1 and usages[1].input_tokens == 1


def test_only_leading_billing_lines_are_removed() -> None:
    line = BILLING.format("7b4")
    assert without_billing_lines(line + "Rules") == without_billing_lines(line + line + "\nRules") == "Rules"
    assert without_billing_lines(line.rstrip("\n")) == without_billing_lines("") == ""
    for kept in ("Rules\n" + line, " " + line, "x-anthropic-version: 1\nRules", "Rules"):
        assert without_billing_lines(kept) == kept


def test_system_turns_and_mixed_blocks_are_kept(live: Live, anthropic_client: Anthropic) -> None:
    messages: Any = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "system", "content": "late rule"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "a", "name": "get_order_status", "input": {"x": 1}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "gone", "is_error": True},
                {"type": "text", "text": "three"},
            ],
        },
    ]
    chat: Any = [
        {"role": "user", "content": "one\ntwo"},
        {"role": "system", "content": "late rule"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "get_order_status", "arguments": {"x": 1}}}],
        },
        {"role": "tool", "content": "Error: gone"},
        {"role": "user", "content": "three"},
    ]
    function = {"name": TOOL["name"], "parameters": TOOL["input_schema"], "description": TOOL["description"]}
    expected = live.engine.tokenize(
        live.engine.render(chat, tools=[{"type": "function", "function": function}], reasoning=False)  # type: ignore[list-item]
    )
    counted = anthropic_client.messages.count_tokens(messages=messages, tools=[TOOL], model="lily-nano")
    assert counted.input_tokens == len(expected)


def test_errors(live: Live, anthropic_client: Anthropic) -> None:
    create: Any = anthropic_client.messages.create
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    for match, options in (
        ("image", {"messages": [{"role": "user", "content": [image]}]}),
        ("2048", {"max_tokens": 4096}),
        ("web_search", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        ("continuing its text", {"messages": [*ASK, {"role": "assistant", "content": "I am"}]}),
        ("robot", {"messages": [{"role": "robot", "content": "x"}]}),
        ("mcp_servers", {"extra_body": {"mcp_servers": [{"url": "x"}]}}),
    ):
        with pytest.raises(anthropic.BadRequestError, match=match) as caught:
            create(**GREEDY | {"messages": ASK} | options)
        body: Any = caught.value.body
        assert body["type"] == "error" and body["error"]["type"] == "invalid_request_error"
        assert body["request_id"] == caught.value.request_id
    with pytest.raises(anthropic.NotFoundError, match="claude"):
        create(**GREEDY | {"messages": ASK, "model": "claude"})
    missing = live.post("/v1/messages", model="lily-nano", messages=ASK)
    assert missing.status_code == 400 and "max_tokens" in missing.json()["error"]["message"]


def test_an_error_in_a_stream_is_an_error_event(live: Live, anthropic_client: Anthropic) -> None:
    with saying(live, [5, 6, ValueError("broken")]), pytest.raises(anthropic.APIStatusError, match="internal error"):
        list(anthropic_client.messages.create(messages=ASK, stream=True, **GREEDY))


def test_a_client_timeout_frees_the_engine(live: Live, anthropic_client: Anthropic) -> None:
    cancelled = live.metric("lily_cancelled_total")
    impatient = anthropic_client.with_options(timeout=anthropic.Timeout(300, read=0.3))
    with live.device_held(), pytest.raises(anthropic.APITimeoutError):
        impatient.messages.create(messages=ASK, **GREEDY)
    live.wait_until(lambda: live.metric("lily_cancelled_total") == cancelled + 1)
    live.wait_until_idle()
