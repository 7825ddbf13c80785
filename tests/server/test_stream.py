"""What a stream must do while it lasts: pings, progress, whole characters, no markup, and an end when nobody reads."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import httpx
import pytest

from .live import ANSWER, ASK, Drawn, Live, events, nano, saying, serving

CHAT: dict[str, Any] = {"messages": ASK, "temperature": 0, "reasoning_effort": "none"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "write",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "count": {"type": "integer"}},
            "required": ["text"],
        },
    },
}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "The first", "temperature": 0, "max_tokens": 8},
    "/v1/responses": {"input": "Who are you?", "temperature": 0, "reasoning": {"effort": "none"}},
    "/v1/messages": {"messages": ASK, "temperature": 0, "max_tokens": 64},
}


@pytest.mark.parametrize("route", ROUTES)
def test_headers_leave_at_once_and_pings_come_on_time(live: Live, route: str) -> None:
    with live.device_held(), live.client.stream("POST", route, json=ROUTES[route] | {"stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        lines, pings = response.iter_lines(), 0
        for line in lines:
            pings += line in (": ping", "event: ping")
            if pings == 4:
                break
    live.wait_until_idle()


def test_pings_also_come_while_output_is_held_back(live: Live) -> None:
    said, end = live.engine.tokenize("ab"), live.engine.stop_token_ids[0]
    pinged = threading.Event()
    with saying(live, said):
        puppet: Any = live.engine._runtime
        decode = puppet.decode

        def slow(*arguments: Any, **options: Any) -> Any:
            time.sleep(0.05)  # more often than pings come
            return [Drawn(end)] if pinged.is_set() else decode(*arguments, **options)

        puppet.decode = slow
        # All of it may be the beginning of the stop string, so none of it may be shown yet.
        body = CHAT | {"stream": True, "stop": ["ab" * 2000], "max_tokens": 600}
        received = ""
        with live.client.stream("POST", "/v1/chat/completions", json=body) as response:
            for line in response.iter_lines():
                received += line + "\n"
                if line == ": ping":
                    pinged.set()
    shown = [json.loads(data)["choices"][0]["delta"].get("content") for _, data in events(received)[:-1]]
    (text,) = filter(None, shown)
    assert pinged.is_set() and text.replace("ab", "") == ""


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_first_token_is_noticed(live: Live, route: str, stream: bool) -> None:
    cancelled = live.metric("lily_cancelled_total", route=route)
    with live.device_held():
        body = json.dumps(ROUTES[route] | {"stream": stream}).encode()
        with socket.create_connection(("127.0.0.1", live.port)) as connection:
            head = f"POST {route} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            live.wait_until(lambda: len(live.service.admission) == 1)
        live.wait_until(lambda: len(live.service.admission) == 0)
    live.wait_until_idle()
    assert live.metric("lily_cancelled_total", route=route) == cancelled + 1


def test_leaving_in_a_prefill_stops_it_within_a_chunk_and_the_retry_goes_on_from_there() -> None:
    with serving(nano(max_context=8192)) as live:
        prompt = [number % 4000 for number in range(6000)]
        body = {"prompt": prompt, "max_tokens": 1, "stream": True, "return_progress": True}
        with live.gated() as gate:
            progress: list[Any] = []
            with live.client.stream("POST", "/v1/completions", json=body) as response:
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        progress.append(json.loads(line[6:])["prompt_progress"])
                        gate.allow(1)  # one at a time: the latest progress is what a stream gives
                    if len(progress) == 4:
                        break
            live.wait_until(lambda: len(live.service.admission) == 0)
        # The last permit was for the step that was already running.
        live.wait_until_idle()
        chunks = gate.chunks
        assert len(chunks) <= 4 < 6000 // live.engine.runtime.max_chunk_tokens
        assert [step["processed"] for step in progress] == [0, *(sum(chunks[:end]) for end in (1, 2, 3))]
        assert {step["total"] for step in progress} == {6000} and {step["cache"] for step in progress} == {0}
        retry = live.post("/v1/completions", prompt=prompt, max_tokens=1).json()
        assert retry["usage"]["prompt_tokens_details"]["cached_tokens"] >= sum(chunks[:3])


def test_leaving_while_tokens_come_ends_the_request(live: Live) -> None:
    body = CHAT | {"stream": True, "ignore_eos": True, "max_tokens": 1500}
    with live.gated() as gate:
        gate.allow(100)
        with live.client.stream("POST", "/v1/chat/completions", json=body) as response:
            for _, line in zip(range(8), filter(None, response.iter_lines()), strict=False):
                assert line.startswith((":", "data: "))
        live.wait_until(lambda: len(live.service.admission) == 0)
    live.wait_until_idle()
    assert gate.num_tokens <= 101


def test_timings_and_usage_are_given_when_asked_for(live: Live) -> None:
    live.post("/v1/chat/completions", **CHAT)
    body = live.post("/v1/chat/completions", **CHAT, timings=True).json()
    timings, usage = body["timings"], body["usage"]
    assert timings["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"] > 0
    assert timings["cache_n"] + timings["prompt_n"] == usage["prompt_tokens"]
    assert timings["predicted_n"] == usage["completion_tokens"] and timings["predicted_per_second"] > 0
    assert "timings" not in live.post("/v1/chat/completions", **CHAT).json()


def test_characters_and_emoji_stay_whole_on_all_routes(live: Live) -> None:
    text = "naïve 日本語 👩‍👩‍👧‍👦🏽 ✓"
    with saying(live, text):
        for route, body in ROUTES.items():
            body = body | {"max_output_tokens" if "responses" in route else "max_tokens": 200}
            whole = live.post(route, **body).json()
            stream = live.post(route, **body, stream=True).text
            assert "\ufffd" not in stream and _text(route, whole) == text
            assert _streamed_text(route, stream) == text


def _text(route: str, body: Any) -> str:
    if "messages" in route:
        return "".join(block["text"] for block in body["content"])
    if "responses" in route:
        return "".join(part["text"] for item in body["output"] for part in item["content"])
    (choice,) = body["choices"]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def _streamed_text(route: str, text: str) -> str:
    out = ""
    for name, data in events(text):
        if data == "[DONE]":
            continue
        body = json.loads(data)
        if "messages" in route:
            out += body["delta"]["text"] if name == "content_block_delta" else ""
        elif "responses" in route:
            out += body["delta"] if name == "response.output_text.delta" else ""
        else:
            for choice in body["choices"]:
                out += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return out


HOSTILE = 'if a < b: "x"\n</parameter>\n</tool_call> {"k": [1, "\\n"]} <tool_call> 👍\n\n'


@pytest.mark.parametrize("in_thinking", [False, True])
def test_hostile_arguments_come_back_byte_for_byte_and_no_markup_leaks(live: Live, in_thinking: bool) -> None:
    call = (
        f"<tool_call>\n<function=write>\n<parameter=text>\n{HOSTILE}\n</parameter>\n<parameter=count>\nmany\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    text = f"Let me see. {call}\n</think>\n\nDone." if in_thinking else f"I write.\n\n{call}"
    body = CHAT | {"tools": [TOOL], "reasoning_effort": "low" if in_thinking else "none"}
    with saying(live, text):
        message = live.post("/v1/chat/completions", **body).json()["choices"][0]["message"]
        stream = events(live.post("/v1/chat/completions", **body, stream=True).text)
    (made,) = message["tool_calls"]
    assert made["function"]["name"] == "write"
    # What is no integer stays the text that it was: no call is dropped.
    assert json.loads(made["function"]["arguments"]) == {"text": HOSTILE, "count": "many"}
    deltas = [json.loads(data)["choices"][0]["delta"] for _, data in stream[:-1]]
    arguments = "".join(c["function"]["arguments"] for delta in deltas for c in delta.get("tool_calls", ()))
    assert arguments == made["function"]["arguments"]
    content = "".join(delta.get("content") or "" for delta in deltas)
    assert content == (message["content"] or "") and "<" not in content
    assert content == ("Done." if in_thinking else "I write.")
    reasoning = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    assert reasoning == message.get("reasoning_content", "") and "<function" not in reasoning


MADE = "<tool_call>\n<function=write>\n<parameter=text>\nabc\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        (f"{MADE} Done.", ["call", "Done."]),
        (f"One {MADE} two {MADE} three", ["One", "call", " two", "call", " three"]),
        (f"<think>a {MADE} b</think>c {MADE}", ["a", "call", " b", "c", "call"]),
    ],
)
def test_text_behind_a_call_opens_a_block_behind_it(live: Live, text: str, blocks: list[str]) -> None:
    """The last arguments of a call and the text that follows become certain at once."""
    function = TOOL["function"]
    limits = {"temperature": 0, "max_tokens": 200, "max_output_tokens": 200}
    ask = {
        "/v1/messages": {"messages": ASK, "tools": [{"name": "write", "input_schema": function["parameters"]}]},
        "/v1/responses": {
            "input": "Write.",
            "tools": [{"type": "function", **function}],
            "reasoning": {"effort": "none"},
        },
    }
    with saying(live, text):
        whole = {route: live.post(route, **body, **limits).json() for route, body in ask.items()}
        streams = {route: events(live.post(route, **body, **limits, stream=True).text) for route, body in ask.items()}
    written: list[str] = []
    for block in whole["/v1/messages"]["content"]:
        written.append("call" if block.get("input") == {"text": "abc"} else block[block["type"]])
    assert written == blocks
    written = []
    for item in whole["/v1/responses"]["output"]:
        is_call = item.get("arguments") == '{"text": "abc"}'
        written.append("call" if is_call else "".join(part["text"] for part in item["content"]))
    assert written == blocks
    for route, place in (("/v1/messages", "index"), ("/v1/responses", "output_index")):
        joined: dict[int, str] = {}
        for _, data in streams[route]:
            event = json.loads(data)
            delta = event.get("delta")
            if isinstance(delta, dict):
                delta = next((delta[key] for key in ("text", "thinking", "partial_json") if key in delta), None)
            if isinstance(delta, str):
                joined[event[place]] = joined.get(event[place], "") + delta
        assert [joined[index] for index in range(len(joined))] == [
            '{"text": "abc"}' if block == "call" else block for block in blocks
        ]


@pytest.mark.parametrize("stop", ["<|im_end|>", "<|endoftext|>"])
def test_every_stop_id_ends_an_answer(live: Live, stop: str) -> None:
    ids = live.engine.tokenize(f"Yes{stop}No<|im_end|>", allow_special=True)
    assert live.engine.tokenizer.added_tokens[stop] in live.engine.stop_token_ids
    with saying(live, ids):
        choice = live.post("/v1/chat/completions", **CHAT).json()["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Yes", "stop")


def test_a_stop_string_across_tokens_is_never_shown(live: Live) -> None:
    ids = [token for piece in ("He", "llo EN", "D of", " it") for token in live.engine.tokenize(piece)]
    with saying(live, [*ids, *live.engine.stop_token_ids[:1]]):
        for stream in (False, True):
            response = live.post("/v1/completions", prompt="x", max_tokens=32, stop="END", stream=stream)
            shown = _streamed_text("", response.text) if stream else response.json()["choices"][0]["text"]
            assert shown == "Hello "


def test_an_error_behind_the_headers_ends_the_stream_with_an_error(live: Live) -> None:
    failed = live.metric("lily_request_error_total", status="500")
    with saying(live, [5, 6, ValueError("broken")]):
        for route, body in ROUTES.items():
            text = live.post(route, **body, stream=True).text
            assert "an internal error ended this request" in text and "broken" not in text and "[DONE]" not in text
            whole = live.post(route, **body)
            assert whole.status_code == 500 and "broken" not in whole.text
    assert live.metric("lily_request_error_total", status="500") == failed + 2 * len(ROUTES)
    assert live.post("/v1/chat/completions", **CHAT).json()["choices"][0]["message"]["content"] == ANSWER


def test_late_and_leading_instructions(live: Live) -> None:
    """The leading ones become one; a later one stays where it is, and what stands before it stays cached."""

    def ask(messages: Any) -> httpx.Response:
        return live.post("/v1/chat/completions", **CHAT | {"messages": messages})

    base = [
        {"role": "system", "content": "You are in a library of many old books."},
        {"role": "developer", "content": "Answer briefly."},
        {"role": "user", "content": "Who are you?"},
    ]
    assert ask(base).status_code == 200
    late = [*base, {"role": "assistant", "content": "A book."}, {"role": "system", "content": "Be brief."}, *ASK]
    response = ask(late)
    prefix = live.post("/apply-template", messages=base, reasoning_effort="none").json()
    assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= prefix["count"] - 8
    prompt = live.post("/apply-template", messages=late).json()["prompt"]
    assert prompt.count("<|im_start|>system") == 2 and "old books.\n\nAnswer briefly." in prompt
    error = ask([*ASK, {"role": "robot", "content": "x"}])
    assert error.status_code == 400 and "message 1 has the role 'robot'" in error.json()["error"]["message"]
