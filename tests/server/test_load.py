"""Thirty-two clients at once, some of which leave: no wrong answer, nothing left behind, every request accounted for.

Half a minute; ten with `make soak`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from hypothesis import settings

from lily.owner import Request
from lily.server.run import Run
from lily.stream import Stream

from .live import ASK, Live, events, nano, serving
from .test_openai_client import DOCUMENT, SCHEMA, TOOL
from .wire import post

IS_SOAK = settings.default is not None and settings.default.max_examples > 100
SECONDS = 600 if IS_SOAK else 30
NUM_CLIENTS = 32
CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"


def user(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def workload() -> list[tuple[str, dict[str, Any]]]:
    """Greedy requests of all kinds: short and long prompts, shared stems, tools, schemas, thinking."""
    plain: dict[str, Any] = {"temperature": 0, "reasoning_effort": "none", "max_tokens": 48}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    stem = {"role": "system", "content": "You answer the questions of visitors. " * 30}
    return [
        (CHAT, plain | {"messages": ASK}),
        (CHAT, plain | {"messages": user("What is a compiler?")}),
        (CHAT, plain | {"messages": [stem, *ASK]}),
        (CHAT, plain | {"messages": [stem, *user("Reverse this list: red, green, blue")]}),
        (CHAT, plain | {"messages": user("Where is my order 65195?"), "tools": [TOOL]}),
        (CHAT, plain | {"messages": user(DOCUMENT), "response_format": form}),
        (CHAT, {"messages": user("Sort these words: tiger, apple, moon, wheel"), "temperature": 0, "max_tokens": 64}),
        (COMPLETIONS, {"prompt": "The first", "temperature": 0, "max_tokens": 24}),
        (COMPLETIONS, {"prompt": [number % 4000 for number in range(700)], "temperature": 0, "max_tokens": 4}),
        (COMPLETIONS, {"prompt": "Call me at", "regex": r"\d{3}-\d{4}", "temperature": 0}),
        (
            RESPONSES,
            {"input": "Who are you?", "temperature": 0, "reasoning": {"effort": "low"}, "max_output_tokens": 64},
        ),
        (MESSAGES, {"messages": ASK, "system": stem["content"], "temperature": 0, "max_tokens": 48}),
    ]


def essence(route: str, body: Any) -> str:
    """What the model said, without ids and times."""
    if route == MESSAGES:
        return json.dumps([{key: block[key] for key in ("text", "input") if key in block} for block in body["content"]])
    if route == RESPONSES:
        return json.dumps([[part["text"] for part in item["content"]] for item in body["output"]])
    (choice,) = body["choices"]
    if route == COMPLETIONS:
        return str(choice["text"])
    message = choice["message"]
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return json.dumps([message["content"] or "", message.get("reasoning") or "", calls])


def streamed_essence(route: str, text: str) -> str:
    """The same, from the events of a stream."""
    bodies = [(name, json.loads(data)) for name, data in events(text) if data != "[DONE]"]
    if route == RESPONSES:
        return essence(route, bodies[-1][1]["response"])
    if route == MESSAGES:
        text = "".join(body["delta"]["text"] for name, body in bodies if name == "content_block_delta")
        return json.dumps([{"text": text}])
    choices = [choice for _, body in bodies for choice in body["choices"]]
    if route == COMPLETIONS:
        return "".join(choice["text"] for choice in choices)
    deltas = [choice["delta"] for choice in choices]
    pieces: dict[int, str] = {}
    for call in (call for delta in deltas for call in delta.get("tool_calls", ())):
        pieces[call["index"]] = pieces.get(call["index"], "") + call["function"]["arguments"]
    joined = ["".join(delta.get(key) or "" for delta in deltas) for key in ("content", "reasoning")]
    return json.dumps([*joined, list(pieces.values())])


@dataclass
class Tally:
    sent: int = 0
    answered: int = 0
    wrong: list[str] = field(default_factory=list)


async def client(live: Live, expected: list[str], seed: int, deadline: float, tally: Tally) -> None:
    draw = random.Random(seed)
    requests = workload()
    async with httpx.AsyncClient(base_url=live.url, timeout=600) as http:
        while time.monotonic() < deadline or tally.answered <= 8:
            index = draw.randrange(len(requests))
            route, body = requests[index]
            kind = draw.choices(("whole", "stream", "leave stream", "leave at once"), (4, 4, 2, 1))[0]
            tally.sent += 1
            if kind == "leave at once":
                data = post(route, json.dumps(body).encode())
                _, writer = await asyncio.open_connection("127.0.0.1", live.port)
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(draw.random() * 0.2)
                writer.close()
                continue
            if kind == "whole":
                found = essence(route, (await http.post(route, json=body)).json())
            else:
                async with http.stream("POST", route, json=body | {"stream": True}) as response:
                    if kind == "leave stream":
                        left = draw.randrange(12)
                        async for _ in response.aiter_lines():
                            if (left := left - 1) < 0:
                                break
                        continue
                    found = streamed_essence(route, (await response.aread()).decode())
            tally.answered += 1
            if found != expected[index]:
                tally.wrong.append(f"{kind} {route} {index}: {found} instead of {expected[index]}")


def resident_bytes() -> int:
    """Of this process; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0


def counts(live: Live) -> list[float]:
    """Requests that were answered, whose clients left, and that failed."""
    return [live.metric(f"lily_{name}_total") for name in ("request_success", "cancelled", "request_error")]


def left_behind() -> list[object]:
    gc.collect()
    return [thing for thing in gc.get_objects() if isinstance(thing, (Run, Request, Stream))]


def test_a_mixed_load_with_clients_that_leave() -> None:
    tally = Tally()

    async def load(seconds: float, seed: int) -> None:
        deadline = time.monotonic() + seconds
        await asyncio.gather(*(client(live, expected, seed + index, deadline, tally) for index in range(NUM_CLIENTS)))

    # Little memory: requests wait for it, and all of it is touched soon.
    with serving(nano(memory_limit="300MiB", prefix_cache_bytes="64MiB")) as live:
        expected = [essence(route, live.post(route, **body).json()) for route, body in workload()]
        alone = len(expected)
        live.engine.prefix_cache.clear()
        empty = live.engine._owner.call(lambda: live.engine.runtime.state_use)
        asyncio.run(load(SECONDS / 4, 0))
        live.wait_until_idle()
        before = resident_bytes()
        asyncio.run(load(SECONDS * 3 / 4, 1000))
        live.wait_until(lambda: sum(counts(live)) == tally.sent + alone)  # those too whose clients left at once
        live.wait_until_idle()
        print(f"{tally.sent} requests, {tally.answered} answered in full, {len(tally.wrong)} wrong")
        assert not tally.wrong, tally.wrong[:5]
        assert tally.answered > 8

        live.wait_until(lambda: len(live.server.server_state.connections) <= 1)
        success, cancelled, errors = counts(live)
        assert success + cancelled + errors == tally.sent + alone
        assert errors == 0 and success >= tally.answered + alone and cancelled > 0

        live.wait_until(lambda: not left_behind())  # what has just ended may stand in a frame of another thread
        if IS_SOAK:
            growth = resident_bytes() - before
            print(
                f"{success:.0f} answered, {cancelled:.0f} cancelled, {growth} bytes more than after the first quarter"
            )
            assert growth < 64 * 1024 * 1024, f"{growth} bytes more than after the first quarter"
        live.engine.prefix_cache.clear()
        assert live.engine._owner.call(lambda: live.engine.runtime.state_use) == empty
