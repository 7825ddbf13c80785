"""Event loops: the async twins give the same results, and a cancelled task frees the engine."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from lily import Engine, EngineClosedError, _core
from lily.stream import fold_chat

ASK = [{"role": "user", "content": "Who are you?"}]
LONG = {"ignore_eos": True, "temperature": 0.0}
PATIENCE = 120  # seconds until something counts as hanging, on a machine that others use as well


@pytest.fixture(scope="module")
def wide_engine() -> Iterator[Engine]:
    with Engine("lily-nano", max_context=4096, progress=False) as engine:
        yield engine


def is_idle(engine: Engine) -> bool:
    """Whether no request is left, after the step that runs now."""
    return engine._owner.call(lambda: len(engine._running) == 0)


async def until_running(engine: Engine, task: asyncio.Task[Any]) -> None:
    """Wait until the task's request is seen on the device. One that ended unseen is a failure, not an endless wait."""
    while is_idle(engine):
        assert not task.done()
        await asyncio.sleep(0.001)


def test_the_twins_give_the_same_results(engine: Engine) -> None:
    async def main() -> None:
        options = {"temperature": 0.0, "max_tokens": 8}
        whole = engine.generate("The first", **options)  # type: ignore[call-overload]
        assert (await engine.agenerate("The first", **options)).text == whole.text  # type: ignore[call-overload]
        several = await engine.agenerate(["The first", engine.tokenize("The first")], **options)  # type: ignore[call-overload]
        assert [one.token_ids for one in several] == [whole.token_ids] * 2
        assert several[0].prompt_token_ids == whole.prompt_token_ids
        texts = [chunk.text async for chunk in engine.astream("The first", **options)]  # type: ignore[arg-type]
        assert "".join(texts) == whole.text and len(texts) == len(whole.token_ids)
        reply = engine.chat(ASK, reasoning=True, temperature=0)
        assert (await engine.achat(ASK, reasoning=True, temperature=0)).content == reply.content
        chunks = [chunk async for chunk in engine.astream_chat(ASK, reasoning=True, temperature=0)]
        assert fold_chat(chunks).reasoning == reply.reasoning
        form = {"type": "json_schema", "json_schema": {"schema": {"const": 5}}}
        assert (await engine.achat(ASK, reasoning=True, response_format=form)).content == "5"  # type: ignore[typeddict-item]

    asyncio.run(main())


def test_errors_come_from_the_first_await(engine: Engine) -> None:
    async def main() -> None:
        for error, match, stream in (
            (ValueError, "no tokens", engine.astream("")),
            (TypeError, "reasoning", engine.astream_chat(ASK, reasoning=1.5)),  # type: ignore[arg-type]
        ):
            with pytest.raises(error, match=match):
                await anext(stream)
            assert [item async for item in stream] == []

    asyncio.run(main())


def test_many_tasks_share_one_loop_and_no_thread_waits_for_a_request(engine: Engine) -> None:
    async def main() -> None:
        alone = (await engine.agenerate("One", temperature=0, max_tokens=6)).text
        before = threading.active_count()
        tasks = [asyncio.create_task(engine.agenerate("One", temperature=0, max_tokens=6)) for _ in range(40)]
        ticks = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0.001)
            ticks += 1
        assert [task.result().text for task in tasks] == [alone] * 40
        # asyncio's own pool, which prepares requests, has a fixed size.
        assert threading.active_count() <= before + 32 and ticks > 10

    asyncio.run(main())


def test_cancelling_a_task_ends_its_request(engine: Engine) -> None:
    async def main() -> None:
        task = asyncio.create_task(engine.agenerate("Once", **LONG))  # type: ignore[call-overload]
        await until_running(engine, task)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert type(caught.value) is asyncio.CancelledError
        assert is_idle(engine)

    asyncio.run(main())


def test_a_deadline_ends_a_request(engine: Engine) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                async for _ in engine.astream("Once", **LONG):  # type: ignore[arg-type]
                    pass
        assert is_idle(engine)
        assert (await engine.agenerate("One", max_tokens=1)).usage.completion_tokens == 1

    asyncio.run(main())


def test_closing_and_dropping_a_stream_end_its_request(engine: Engine) -> None:
    async def main() -> None:
        async with engine.astream("Once", **LONG) as stream:  # type: ignore[arg-type]
            await anext(stream)
        assert is_idle(engine) and [chunk async for chunk in stream] == []
        chat = engine.astream_chat(ASK, **LONG)  # type: ignore[arg-type]
        await anext(chat)
        await chat.aclose()
        await chat.aclose()
        assert is_idle(engine)
        dropped = engine.astream("Once", **LONG)  # type: ignore[arg-type]
        await anext(dropped)
        del dropped
        gc.collect()
        assert is_idle(engine)

    asyncio.run(main())


def test_a_task_that_waits_sees_another_one_close_its_stream(engine: Engine) -> None:
    async def main() -> None:
        stream = engine.astream("Once", **LONG)  # type: ignore[arg-type]

        async def read() -> int:
            return len([chunk async for chunk in stream])

        task = asyncio.create_task(read())
        await until_running(engine, task)
        await stream.aclose()
        await asyncio.wait_for(task, PATIENCE)

    asyncio.run(main())


def test_a_loop_that_ends_first_leaves_nothing_behind(engine: Engine) -> None:
    loop = asyncio.new_event_loop()
    stream = engine.astream("Once", **LONG)  # type: ignore[arg-type]
    loop.run_until_complete(anext(stream))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    deadline = time.monotonic() + PATIENCE
    while not is_idle(engine) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_idle(engine) and engine.generate("One", max_tokens=1).usage.completion_tokens == 1


def test_threads_loops_and_close_at_once() -> None:
    engines: list[Engine] = []
    maker = threading.Thread(target=lambda: engines.append(Engine("lily-nano", max_context=512, progress=False)))
    maker.start()
    maker.join()
    (engine,) = engines
    alone = engine.generate("One", temperature=0, max_tokens=6).text
    outcomes: list[str] = []

    def in_thread() -> None:
        try:
            while True:
                outcomes.append(engine.generate("One", temperature=0, max_tokens=6).text)
        except EngineClosedError:
            outcomes.append("closed")

    async def in_loop() -> None:
        try:
            while True:
                outcomes.append((await engine.agenerate("One", temperature=0, max_tokens=6)).text)
        except EngineClosedError:
            outcomes.append("closed")

    threads = [threading.Thread(target=in_thread) for _ in range(4)]
    threads.append(threading.Thread(target=lambda: asyncio.run(in_loop())))
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    while len(outcomes) < 10 and time.monotonic() < deadline:
        time.sleep(0.01)
    engine.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert outcomes.count("closed") == 5 and set(outcomes) == {alone, "closed"}
    with pytest.raises(EngineClosedError):
        asyncio.run(engine.agenerate("One"))


class Recorder:
    """A runtime that notes the order of its steps."""

    def __init__(self, runtime: _core.Runtime) -> None:
        self._runtime = runtime
        self.steps: list[str] = []
        self.max_chunk_tokens = runtime.max_chunk_tokens
        self.timeline = runtime.timeline

    def prefill(self, *arguments: Any, **options: Any) -> object:
        self.steps.append("chunk")
        return self._runtime.prefill(*arguments, **options)

    def decode(self, *arguments: Any, **options: Any) -> object:
        self.steps.append("token")
        return self._runtime.decode(*arguments, **options)


def test_a_long_prefill_stalls_a_running_stream_by_one_chunk_at_most(
    wide_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(wide_engine.runtime)
    monkeypatch.setattr(wide_engine, "_runtime", recorder)
    with wide_engine.stream("Once", **LONG) as stream:  # type: ignore[arg-type]
        next(stream)
        wide_engine.generate([1] * (3 * 512), max_tokens=1)  # in chunks of 512, since the stream waits
    steps = "".join(step[0] for step in recorder.steps).lstrip("c")  # without the stream's own prompt
    assert steps.count("c") == 4 and "cc" not in steps  # the last chunk is the last token: the state before it is kept
