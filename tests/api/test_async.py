"""Event loops: the async twins give the same results, and a cancelled task frees the engine."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from lily import Engine, EngineClosedError, _core
from lily.stream import fold_chat
from tests.gated import PATIENCE, Gate, gated, wait_until

ASK = [{"role": "user", "content": "Who are you?"}]
LONG = {"ignore_eos": True, "temperature": 0.0}


def is_idle(engine: Engine) -> bool:
    """Whether no request is left, after the step that runs now."""
    return engine._owner.call(lambda: len(engine._running) == 0)


async def until_running(gate: Gate) -> None:
    """Wait until a request has begun and stands in the middle of its tokens."""
    gate.allow(4)
    await asyncio.to_thread(wait_until, lambda: gate.num_tokens > 0 and gate.is_waiting)


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
        with gated(engine) as gate:
            tasks = [asyncio.create_task(engine.agenerate("One", temperature=0, max_tokens=6)) for _ in range(40)]
            await asyncio.to_thread(wait_until, lambda: gate.is_waiting)
            for _ in range(10):  # the loop goes on
                await asyncio.sleep(0.001)
            assert not any(task.done() for task in tasks)
            # asyncio's own pool, which prepares requests, has a fixed size.
            assert threading.active_count() <= before + 32
        assert [(await task).text for task in tasks] == [alone] * 40

    asyncio.run(main())


def test_cancelling_a_task_ends_its_request(engine: Engine) -> None:
    async def main() -> None:
        with gated(engine) as gate:
            task = asyncio.create_task(engine.agenerate("Once", **LONG))  # type: ignore[call-overload]
            await until_running(gate)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            assert type(caught.value) is asyncio.CancelledError
        assert is_idle(engine) and gate.num_tokens < 10

    asyncio.run(main())


def test_a_deadline_ends_a_request(engine: Engine) -> None:
    async def main() -> None:
        with gated(engine) as gate:
            gate.allow(4)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    async for _ in engine.astream("Once", **LONG):  # type: ignore[arg-type]
                        pass
        assert is_idle(engine) and gate.num_tokens < 10
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
        alive = weakref.ref(dropped._stream)  # type: ignore[type-var]
        del dropped
        gc.collect()
        assert alive() is None
        assert is_idle(engine)

    asyncio.run(main())


def test_a_task_that_waits_sees_another_one_close_its_stream(engine: Engine) -> None:
    async def main() -> None:
        stream = engine.astream("Once", **LONG)  # type: ignore[arg-type]

        async def read() -> int:
            return len([chunk async for chunk in stream])

        with gated(engine) as gate:
            task = asyncio.create_task(read())
            await until_running(gate)
            await stream.aclose()
            await asyncio.wait_for(task, PATIENCE)

    asyncio.run(main())


def test_a_loop_that_ends_first_leaves_nothing_behind(engine: Engine) -> None:
    loop = asyncio.new_event_loop()
    stream = engine.astream("Once", **LONG)  # type: ignore[arg-type]
    loop.run_until_complete(anext(stream))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    wait_until(lambda: is_idle(engine))
    assert engine.generate("One", max_tokens=1).usage.completion_tokens == 1


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
    wait_until(lambda: len(outcomes) >= 10)
    engine.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert outcomes.count("closed") == 5 and set(outcomes) == {alone, "closed"}
    with pytest.raises(EngineClosedError):
        asyncio.run(engine.agenerate("One"))


class Recorder(Gate):
    """Notes the order of the steps as well."""

    def __init__(self, runtime: _core.Runtime) -> None:
        super().__init__(runtime)
        self.steps: list[str] = []

    def prefill(self, *arguments: Any, **options: Any) -> Any:
        self.steps.append("chunk")
        return super().prefill(*arguments, **options)

    def decode(self, *arguments: Any, **options: Any) -> Any:
        self.steps.append("token")
        return super().decode(*arguments, **options)


def test_a_long_prefill_stalls_a_running_stream_by_one_chunk_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    with Engine("lily-nano", max_context=4096, progress=False) as engine:
        recorder = Recorder(engine.runtime)
        monkeypatch.setattr(engine, "_runtime", recorder)
        stream = engine.stream("Once", **LONG)  # type: ignore[arg-type]
        recorder.allow(4)
        next(stream)
        wait_until(lambda: recorder.is_waiting and recorder.num_tokens > 0)
        other = engine.stream([1] * (3 * 512), max_tokens=1)  # in chunks of 512, since the stream waits
        recorder.open()
        assert len(list(other)) == 1
        stream.close()
    steps = "".join(step[0] for step in recorder.steps).lstrip("c")  # without the stream's own prompt
    assert steps.count("c") == 4 and "cc" not in steps  # the last chunk is the last token: the state before it is kept
