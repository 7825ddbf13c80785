"""Programs of users under mypy --strict: what is right passes, and each mistake is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = '''
import asyncio
from typing import assert_type

import numpy as np
from lily import (
    CancelledError, ChatChunk, ChatReply, Chunk, Completion, Engine, LilyError, SamplingParams, ToolCall, Usage
)
from numpy.typing import NDArray


def weather(city: str, days: int = 1) -> str:
    """The weather. city: its name. days: how many."""
    return f"{city}: sun for {days} days"


engine = Engine("lily-nano", max_context=512, progress=False)
params = SamplingParams(temperature=0.7, seed=1, stop=["END"])
assert_type(engine.generate("Hello", params, max_tokens=4), Completion)
assert_type(engine.generate(["Hello", [1, 2]]), list[Completion])
for chunk in engine.stream("Hello", max_tokens=4):
    assert_type(chunk, Chunk)
    assert_type(chunk.usage, Usage | None)
assert_type(engine.stream("Hello").result(), Completion)

reply = engine.chat([{"role": "user", "content": "Hi"}], params, tools=[weather], tool_choice="weather")
assert_type(reply, ChatReply)
assert_type(reply.tool_calls, tuple[ToolCall, ...])
history = [reply.to_message()]
engine.chat(history, response_format={"type": "json_object"}, reasoning="low", max_tokens=9)
for delta in engine.stream_chat(history, tools=[weather], reasoning=False, temperature=0):
    assert_type(delta, ChatChunk)
assert_type(engine.stream_chat(history).result(), ChatReply)
assert_type(engine.score("1 + 1 =", [" 2", " 3"]), list[float])
assert_type(engine.tokenize("text"), list[int])
with engine.session() as session:
    session.prefill([1, 2])
    assert_type(session.logits, NDArray[np.float32])


async def main() -> None:
    assert_type(await engine.agenerate("Hello"), Completion)
    assert_type(await engine.achat(history, tools=[weather], tool_choice="auto"), ChatReply)
    async for chunk in engine.astream("Hello"):
        assert_type(chunk, Chunk)
    async with engine.astream_chat(history, params) as answer:
        async for piece in answer:
            assert_type(piece, ChatChunk)
        assert_type(await answer.result(), ChatReply)


try:
    asyncio.run(main())
except CancelledError as error:
    assert_type(error.usage, Usage | None)
except LilyError:
    pass
'''

MISTAKES = [
    ('engine.generate("x", temprature=1.0)', "Unexpected keyword argument"),
    ('engine.chat([], reasoning="much")', "Argument"),
    ('Engine("lily-nano", device="gpu")', "Argument"),
    ("SamplingParams(0.5)", "Too many positional arguments"),
    ('engine.stream("x", temperature="hot")', "Argument"),
    ('engine.chat([{"role": "user", "content": "x"}], response_format={"type": "xml"})', "Incompatible types|Argument"),
    ('engine.generate("x").txt', 'has no attribute "txt"'),
]


def check(folder: Path, program: str) -> tuple[str, int]:
    file = folder / "program.py"
    file.write_text(program)
    options = ["--strict", "--no-error-summary", "--cache-dir", str(folder / "cache"), "--config-file", ""]
    # A process of its own: mypy moves Python's limit of recursion and the thresholds of its collector.
    done = subprocess.run([sys.executable, "-m", "mypy", *options, str(file)], capture_output=True, text=True)
    return done.stdout + done.stderr, done.returncode


def test_a_program_and_mistakes(tmp_path: Path) -> None:
    assert check(tmp_path, PROGRAM) == ("", 0)
    lines = ["from lily import Engine, SamplingParams", 'engine = Engine("lily-nano")', *(code for code, _ in MISTAKES)]
    found, status = check(tmp_path, "\n".join(lines))
    assert status == 1
    for number, (code, message) in enumerate(MISTAKES, start=3):
        about = "\n".join(line for line in found.splitlines() if f"program.py:{number}: error" in line)
        assert about and any(part in about for part in message.split("|")), (code, found)
