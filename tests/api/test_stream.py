"""What a stream gives besides its chunks: the whole result, and a repr."""

from __future__ import annotations

import asyncio

import pytest

from lily import CancelledError, Engine, SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
QUESTION = [{"role": "user", "content": "Sort these words: tiger, apple, moon, wheel"}]
LENGTHS = (1, 2, 17, 300, 64, 5, 129, 33)


@pytest.mark.parametrize("num_read", [0, 5, 12])
def test_the_result_is_that_of_generate_however_much_was_read(engine: Engine, num_read: int) -> None:
    whole = engine.generate("The archive", PARAMS)
    stream = engine.stream("The archive", PARAMS)
    for _ in range(num_read):
        next(stream)
    result = stream.result()
    assert (result.text, result.token_ids, result.prompt_token_ids) == (
        whole.text,
        whole.token_ids,
        whole.prompt_token_ids,
    )
    assert (result.logprobs, result.finish_reason) == (whole.logprobs, "length")
    assert stream.result() == result and repr(stream) == "Stream(12 tokens, finish_reason 'length')"


def test_the_result_of_a_chat(engine: Engine) -> None:
    whole = engine.chat(QUESTION, reasoning=True, temperature=0)
    stream = engine.stream_chat(QUESTION, reasoning=True, temperature=0)
    for chunk in stream:
        if chunk.content:
            break
    reply = stream.result()
    assert (reply.content, reply.reasoning, reply.to_message()) == (whole.content, whole.reasoning, whole.to_message())
    assert reply.usage.reasoning_tokens == whole.usage.reasoning_tokens > 0


def test_results_for_event_loops(engine: Engine) -> None:
    async def main() -> None:
        stream = engine.astream("The archive", PARAMS)
        assert repr(stream) == "AsyncStream(not started)"
        await anext(stream)
        assert repr(stream) == "AsyncStream(1 tokens so far, running)"
        assert (await stream.result()).token_ids == engine.generate("The archive", PARAMS).token_ids
        chat = engine.astream_chat(QUESTION, SamplingParams(temperature=0), reasoning=False)
        assert (await chat.result()).content == engine.chat(QUESTION, reasoning=False, temperature=0).content
        closed = engine.astream("The archive", PARAMS)
        await closed.aclose()
        with pytest.raises(CancelledError, match="before it started"):
            await closed.result()

    asyncio.run(main())


def test_a_prompt_beside_seven_others_gives_what_it_gives_alone(engine: Engine) -> None:
    """Prompts of 1 to 300 tokens, all decoded in turns; nothing of one shows in another."""
    prompts = [[7 + 3 * n + (11 * n + 5) * i % 3500 for i in range(size)] for n, size in enumerate(LENGTHS)]
    engine.prefix_cache.clear()
    alone = [engine.generate(prompt, PARAMS) for prompt in prompts]
    engine.prefix_cache.clear()
    streams = [engine.stream(prompt, PARAMS) for prompt in prompts]
    for _ in range(12):
        for stream in streams:
            next(stream)
    for stream, whole in zip(streams, alone, strict=True):
        together = stream.result()
        assert (together.text, together.token_ids) == (whole.text, whole.token_ids)
        for one, other in zip(together.logprobs or (), whole.logprobs or (), strict=True):
            assert abs(one.logprob - other.logprob) < 1e-4


def test_a_stream_closed_early_has_no_result(engine: Engine) -> None:
    with engine.stream("The archive", PARAMS) as stream:
        next(stream)
    assert repr(stream) == "Stream(1 tokens so far, closed)"
    with pytest.raises(CancelledError, match="no result"):
        stream.result()
    chat = engine.stream_chat(QUESTION)
    chat.close()
    with pytest.raises(CancelledError, match="no result"):
        chat.result()
