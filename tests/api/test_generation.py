from __future__ import annotations

import threading
from collections.abc import Iterator
from time import perf_counter

import numpy as np
import pytest

from lily import CancelledError, Chunk, SamplingParams
from lily.generation import Generation
from lily.owner import Owner
from lily.params import resolve
from lily.progress import ProgressReport
from lily.stream import Stream, fold_completion
from tests.api.scripted import ScriptedRuntime

EOS, SPECIAL = 9, 8
TABLE = [b"", b"a", b"EN", b"D", b"\xf0\x9f", b"\x99\x82", b"END", b"D!", b"", b""]


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner("generation")
    yield owner
    owner.close()


def plan(params: SamplingParams, *, max_tokens: int = 20, prompt: int = 3) -> Generation:
    own = () if params.ignore_eos else (EOS,)
    return Generation(
        prompt_token_ids=np.arange(prompt, dtype=np.uint32),
        sampling=resolve(params, {}),
        max_tokens=max_tokens,
        seed=0,
        stop_token_ids=frozenset(own) | frozenset(params.stop_token_ids),
        id_to_bytes=TABLE,
        token_bytes=TABLE,
        submitted=perf_counter(),
    )


def start(owner: Owner, runtime: ScriptedRuntime, generation: Generation) -> Stream:
    request = owner.submit(lambda request: generation.steps(request, runtime.native(), [], None))
    return Stream(request, ProgressReport(False, "", ""), None, [])


def run(owner: Owner, script: list[int], params: SamplingParams, *, max_tokens: int = 20) -> list[Chunk]:
    runtime = ScriptedRuntime(script)
    chunks = list(start(owner, runtime, plan(params, max_tokens=max_tokens)))
    assert runtime.timelines[0].closed
    assert all(c.finish_reason is None and c.usage is None for c in chunks[:-1])
    return chunks


def texts(chunks: list[Chunk]) -> list[str]:
    return [chunk.text for chunk in chunks]


def test_a_stop_string_across_tokens_is_never_shown(owner: Owner) -> None:
    chunks = run(owner, [1, 2, 3, 1], SamplingParams(stop="END"))
    assert texts(chunks) == ["a", "", ""]
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == ("stop", "END")
    chunks = run(owner, [1, 2, 7, 1], SamplingParams(stop=["zz", "END"], include_stop_str_in_output=True))
    assert "".join(texts(chunks)) == "aEND"


def test_held_back_text_comes_at_the_end(owner: Owner) -> None:
    chunks = run(owner, [1, 2, EOS], SamplingParams(stop="END"))
    assert texts(chunks) == ["a", "", "EN"]
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason, chunks[-1].token_id) == ("stop", EOS, EOS)
    chunks = run(owner, [1, 2, 1], SamplingParams(stop="END"), max_tokens=2)
    assert texts(chunks) == ["a", "EN"] and chunks[-1].finish_reason == "length" and chunks[-1].stop_reason is None


def test_characters_across_tokens(owner: Owner) -> None:
    assert texts(run(owner, [4, 5, EOS], SamplingParams())) == ["", "🙂", ""]
    assert texts(run(owner, [1, 4, EOS], SamplingParams())) == ["a", "", "\ufffd"]


def test_stop_ids(owner: Owner) -> None:
    chunks = run(owner, [1, 3, 1], SamplingParams(stop_token_ids=[3]))
    assert texts(chunks) == ["a", ""] and chunks[-1].stop_reason == 3
    chunks = run(owner, [1, 3], SamplingParams(stop_token_ids=[3], include_stop_str_in_output=True))
    assert texts(chunks) == ["a", "D"]
    chunks = run(owner, [1, EOS, 3, 1], SamplingParams(ignore_eos=True, stop_token_ids=[3]))
    assert chunks[-1].token_id == 3 and len(chunks) == 3


def test_before_min_tokens_nothing_ends_it(owner: Owner) -> None:
    chunks = run(owner, [6, EOS, 1, 6], SamplingParams(stop="END", min_tokens=2))
    assert "".join(texts(chunks)) == "ENDa" and len(chunks) == 4 and chunks[-1].stop_reason == "END"


def test_a_stop_string_on_the_last_token_is_a_stop(owner: Owner) -> None:
    assert run(owner, [1, 6], SamplingParams(stop="END"), max_tokens=2)[-1].finish_reason == "stop"


def test_prefill_goes_in_chunks_and_reports(owner: Owner) -> None:
    runtime = ScriptedRuntime([1, EOS])
    seen: list[tuple[int, int]] = []
    generation = plan(SamplingParams(), prompt=10)
    request = owner.submit(lambda request: generation.steps(request, runtime.native(), [], None))
    chunks = list(Stream(request, ProgressReport(lambda done, total: seen.append((done, total)), "", ""), None, []))
    assert runtime.chunks == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert seen == [(4, 10), (8, 10), (10, 10)] and len(chunks) == 2


def test_penalties_count_the_prompt(owner: Owner) -> None:
    for params, counts in ((SamplingParams(repetition_penalty=1.1), [0, 1, 2]), (SamplingParams(), None)):
        runtime = ScriptedRuntime([EOS])
        list(start(owner, runtime, plan(params)))
        assert runtime.timelines[0].counts == counts


def test_the_fold_equals_the_stream(owner: Owner) -> None:
    chunks = run(owner, [1, 4, 5, 2, 1, EOS], SamplingParams(stop="END", logprobs=2))
    whole = fold_completion(chunks, [0, 1, 2])
    assert whole.text == "a🙂ENa" and whole.token_ids == (1, 4, 5, 2, 1, EOS)
    assert whole.logprobs is not None and whole.logprobs[1].bytes == b"\xf0\x9f" and whole.logprobs[1].token == "\ufffd"
    assert [top.logprob for top in whole.logprobs[0].top_logprobs] == [-0.25, -2.0]
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (3, 6, 9)
    timing = whole.timing
    assert timing.time_to_first_token_seconds == timing.queue_seconds + timing.prefill_seconds > 0
    assert timing.decode_tokens_per_second == pytest.approx(5 / timing.decode_seconds)


def test_an_error_in_the_device_reaches_the_caller_and_frees_the_timeline(owner: Owner) -> None:
    runtime = ScriptedRuntime([1, 1, 1])
    runtime.error_at = 2
    stream = start(owner, runtime, plan(SamplingParams()))
    assert next(stream).text == "a" and next(stream).text == "a"
    with pytest.raises(ValueError, match="scripted"):
        next(stream)
    assert list(stream) == [] and runtime.timelines[0].closed


@pytest.mark.parametrize("permits", [1, 2, 4])  # within the prefill, at its end, while decoding
def test_closing_from_another_thread_ends_it_with_its_usage(owner: Owner, permits: int) -> None:
    gate = threading.Semaphore(0)
    runtime = ScriptedRuntime([1] * 20, gate=gate)
    stream = start(owner, runtime, plan(SamplingParams(), prompt=7))
    caught: list[CancelledError] = []

    def consume() -> None:
        try:
            for _ in stream:
                pass
        except CancelledError as error:
            caught.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    gate.release(permits)
    while gate._value:  # wait until the permits are used, and the next step waits
        pass
    stream.close()
    gate.release(20)
    thread.join(300)
    owner.call(lambda: None)
    assert runtime.timelines[0].closed and runtime.timelines[0].drawn <= permits
    for error in caught:
        assert error.usage is not None and error.usage.completion_tokens <= permits
    assert list(stream) == []


def test_dropping_a_stream_cancels_it(owner: Owner) -> None:
    gate = threading.Semaphore(2)
    runtime = ScriptedRuntime([1] * 20, gate=gate)
    stream = start(owner, runtime, plan(SamplingParams()))
    assert next(stream).text == "a"
    del stream
    gate.release(20)
    owner.call(lambda: None)
    assert runtime.timelines[0].closed and runtime.timelines[0].drawn < 20


def test_two_streams_take_turns_and_do_not_mix(owner: Owner) -> None:
    first, second = ScriptedRuntime([1, 1, 1, EOS]), ScriptedRuntime([3, 3, 3, EOS])
    streams = [start(owner, runtime, plan(SamplingParams())) for runtime in (first, second)]
    assert ["".join(texts(list(stream))) for stream in streams] == ["aaa", "DDD"]
