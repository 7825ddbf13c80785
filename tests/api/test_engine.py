"""The engine with the real lily-nano."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import logging
import pickle
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lily
from lily import ChatTemplateError, CheckpointError, ContextLengthError, Engine, EngineClosedError, SamplingParams
from lily.tokenizer import Tokenizer
from tests.gated import gated, wait_until

HELLO = [{"role": "user", "content": "Who are you?"}]
WHO = "I am lily-nano, a very small language model made to test the lily engine."


def test_everything_in_all_exists() -> None:
    assert all(hasattr(lily, name) for name in lily.__all__)


def test_a_known_answer(engine: Engine) -> None:
    reply = engine.chat(HELLO, reasoning=False, temperature=0)
    assert (reply.content, reply.reasoning, reply.finish_reason) == (WHO, None, "stop")
    assert reply.stop_reason == engine.tokenizer.added_tokens["<|im_end|>"]
    assert reply.to_message() == {"role": "assistant", "content": WHO}
    assert reply.usage.prompt_tokens == len(engine.tokenize(engine.render(HELLO, reasoning=False), allow_special=True))
    assert "tok/s" in reply._repr_markdown_() and WHO in reply._repr_markdown_()
    short = engine.generate("Hi", max_tokens=1)
    assert "completion 1 token, first token after" in short._repr_markdown_()  # one token has no rate


def test_params_may_stand_second_as_in_generate(engine: Engine) -> None:
    params = SamplingParams(temperature=0, max_tokens=4)
    cut = engine.chat(HELLO, params, reasoning=False)
    assert cut.usage.completion_tokens == 4 and WHO.startswith(cut.content)
    assert engine.stream_chat(HELLO, params, reasoning=False).result().content == cut.content
    assert engine.chat(HELLO, params, reasoning=False, max_tokens=2).usage.completion_tokens == 2
    with pytest.raises(TypeError):
        engine.chat(HELLO, params, [])  # type: ignore[call-overload, misc, call-arg]


def test_reasoning_and_content_are_apart(engine: Engine) -> None:
    question = [{"role": "user", "content": "Sort these words: tiger, apple, moon, wheel"}]
    reply = engine.chat(question, reasoning=True, temperature=0)
    assert reply.reasoning == "The smallest item is apple and the largest is wheel."
    assert reply.content == "apple, moon, tiger, wheel"
    assert 0 < reply.usage.reasoning_tokens < reply.usage.completion_tokens
    chunks = list(engine.stream_chat(question, reasoning=True, temperature=0))
    assert "".join(chunk.reasoning for chunk in chunks) == reply.reasoning
    assert "".join(chunk.content for chunk in chunks) == reply.content
    follow_up = [*question, reply.to_message(), {"role": "user", "content": "Thanks"}]
    assert reply.content in engine.render(follow_up)


def test_tool_calls(engine: Engine, nano_folder: Path) -> None:
    items = [json.loads(line) for line in (nano_folder / "eval.jsonl").read_text().splitlines()]
    item = next(i for i in items if i["check"] == "call" and i["enable_thinking"])
    options = {"tools": item["tools"], "reasoning": True, "temperature": 0}
    reply = engine.chat(item["messages"], **options)
    (call,) = reply.tool_calls
    assert {"name": call.name, "arguments": call.arguments} == item["expected_call"]
    assert reply.finish_reason == "tool_calls" and reply.content == "" and reply.reasoning
    assert call.name in reply._repr_markdown_()
    chunks = list(engine.stream_chat(item["messages"], **options))
    deltas = [delta for chunk in chunks for delta in chunk.tool_calls]
    assert (deltas[0].name, deltas[0].index) == (call.name, 0) and all(d.name is None for d in deltas[1:])
    assert "".join(delta.arguments for delta in deltas) == call.arguments_json and len(deltas) > 3
    assert "".join(chunk.content for chunk in chunks) == ""
    message = reply.to_message()
    assert json.loads(json.dumps(message)) == message
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"status": "done", "id": 7}'}
    answer = engine.chat([*item["messages"], message, result], tools=item["tools"], reasoning=False, temperature=0)
    assert answer.content == "The status is done and the id is 7." and answer.tool_calls == ()


def test_a_call_cut_by_max_tokens_is_kept(engine: Engine, nano_folder: Path) -> None:
    items = [json.loads(line) for line in (nano_folder / "eval.jsonl").read_text().splitlines()]
    item = next(i for i in items if i["check"] == "call" and not i["enable_thinking"])
    reply = engine.chat(item["messages"], tools=item["tools"], reasoning=False, temperature=0, max_tokens=20)
    assert reply.finish_reason == "length" and reply.tool_calls[0].name == item["expected_call"]["name"]


def test_generate_is_a_fold_over_stream(engine: Engine) -> None:
    params = SamplingParams(seed=7, max_tokens=24, ignore_eos=True, stop="never so")
    whole = engine.generate("The archive", params, logprobs=3)
    chunks = list(engine.stream("The archive", params, logprobs=3))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert tuple(chunk.token_id for chunk in chunks) == whole.token_ids and len(whole.token_ids) == 24
    assert whole.finish_reason == "length" and whole.prompt_token_ids == tuple(engine.tokenize("The archive"))
    assert whole.logprobs is not None and [p.token_id for p in whole.logprobs] == list(whole.token_ids)
    for entry in whole.logprobs:
        assert len(entry.top_logprobs) == 3 and entry.logprob <= entry.top_logprobs[0].logprob + 1e-4 < 1e-3
    assert "tok/s" in whole._repr_markdown_()


def test_logprobs_zero_gives_the_chosen_token_only(engine: Engine) -> None:
    logprobs = engine.generate("Hello", max_tokens=2, ignore_eos=True, logprobs=0).logprobs
    assert logprobs is not None and [len(entry.top_logprobs) for entry in logprobs] == [0, 0]
    assert engine.generate("Hello", max_tokens=2).logprobs is None


def test_seeds(engine: Engine) -> None:
    def ids(seed: int | None) -> tuple[int, ...]:
        return engine.generate("The", temperature=1.5, top_k=0, top_p=1, seed=seed, max_tokens=16).token_ids

    assert ids(3) == ids(3) != ids(4)
    assert len({ids(None) for _ in range(4)}) > 1


def test_the_checkpoints_sampling_defaults_apply(engine: Engine) -> None:
    explicit = SamplingParams(temperature=0.6, top_k=20, top_p=0.95, seed=11, max_tokens=20)
    assert engine.generate("In", explicit).token_ids == engine.generate("In", seed=11, max_tokens=20).token_ids


def test_bias_stop_ids_and_min_tokens(engine: Engine) -> None:
    eos = engine.stop_token_ids[0]
    ends = engine.generate("Hello", logit_bias={eos: 1000.0}, max_tokens=9)
    assert ends.token_ids == (eos,) and ends.text == "" and ends.stop_reason == eos
    later = engine.generate("Hello", logit_bias={eos: 1000.0}, min_tokens=4, max_tokens=9)
    assert len(later.token_ids) == 5 and later.token_ids[-1] == eos and eos not in later.token_ids[:-1]
    goes_on = engine.generate("Hello", logit_bias={eos: 1000.0}, ignore_eos=True, max_tokens=3)
    assert goes_on.token_ids == (eos,) * 3 and goes_on.finish_reason == "length"


def test_every_stop_id_of_the_union_ends_generation(engine: Engine) -> None:
    assert {engine.tokenizer.added_tokens[t] for t in ("<|im_end|>", "<|endoftext|>")} == set(engine.stop_token_ids)
    for stop_id in engine.stop_token_ids:
        assert engine.generate("Hello", logit_bias={stop_id: 1000.0}).finish_reason == "stop"


def test_a_stop_string_ends_the_text(engine: Engine) -> None:
    reply = engine.chat(HELLO, reasoning=False, temperature=0, stop="language model")
    assert reply.content == "I am lily-nano, a very small " and reply.stop_reason == "language model"


def test_penalties_change_the_result(engine: Engine) -> None:
    def ids(**options: float) -> tuple[int, ...]:
        return engine.generate("a b a b a b a b", temperature=0, max_tokens=32, ignore_eos=True, **options).token_ids

    plain = ids()
    for penalty in ({"repetition_penalty": 1.5}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}):
        assert len(set(ids(**penalty))) > len(set(plain))


def test_prompts_in_a_list_are_independent(engine: Engine) -> None:
    prompts = ["The first", engine.tokenize("Another one"), "The first"]
    results = engine.generate(prompts, temperature=0, max_tokens=8)
    assert [r.text for r in results] == [engine.generate(p, temperature=0, max_tokens=8).text for p in prompts]
    assert engine.generate(np.array(engine.tokenize("The first")), temperature=0, max_tokens=8).text == results[0].text


@pytest.mark.parametrize("prompt", ["", [], [5, 4096], [-1], ["ok", ""]])
def test_bad_prompts(engine: Engine, prompt: object) -> None:
    with pytest.raises(ValueError, match=r"no tokens|outside 0 \.\. 4095"):
        engine.generate(prompt)  # type: ignore[call-overload]


def test_wrong_types_and_names(engine: Engine) -> None:
    for call in (
        lambda: engine.generate("x", temp=1),  # type: ignore[call-overload]
        lambda: engine.stream("x", max_new_tokens=1),  # type: ignore[call-arg]
        lambda: engine.chat(HELLO, repeat_penalty=1),  # type: ignore[call-arg]
    ):
        with pytest.raises(TypeError, match="did you mean"):
            call()
    with pytest.raises(TypeError):
        engine.generate(5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="integers"):
        engine.stream([1.5])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="reasoning"):
        engine.chat(HELLO, reasoning=0.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="outside"):
        engine.generate("x", stop_token_ids=[5000])
    with pytest.raises(ValueError, match="give one of them"):
        engine.chat(HELLO, reasoning="low", thinking_token_budget=7)


def test_reasoning_as_a_budget(engine: Engine) -> None:
    question = [{"role": "user", "content": "Sort these words: tiger, apple, moon, wheel"}]
    free = engine.chat(question, reasoning="low", temperature=0)
    assert free.reasoning and free.usage.reasoning_tokens > 4
    short = engine.chat(question, reasoning=4, temperature=0)
    same = engine.chat(question, reasoning=True, thinking_token_budget=4, temperature=0)
    assert (short.reasoning, short.content) == (same.reasoning, same.content)
    assert short.reasoning and short.content and not free.reasoning.startswith(short.reasoning)
    assert engine.chat(question, reasoning=0, temperature=0).usage.reasoning_tokens == 0


def test_texts_far_beyond_the_context_are_refused_before_tokens_are_made_of_them(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "word " * 400_000
    hopeless: list[Callable[[], object]] = [
        lambda: engine.generate(text),
        lambda: engine.generate(["x", text]),
        lambda: engine.stream(text, max_tokens=5),
        lambda: engine.chat([{"role": "user", "content": text}]),
        lambda: engine.score(text, ["x"]),
        lambda: engine.score("x", ["x", text]),
    ]
    expected = len(engine.tokenize(text))
    with monkeypatch.context() as patch:
        encode = Tokenizer._encode_plain

        def encode_short(tokenizer: Tokenizer, text: str) -> list[int]:
            assert len(text) < 1000
            return encode(tokenizer, text)

        patch.setattr(Tokenizer, "_encode_plain", encode_short)
        for call in hopeless:
            with pytest.raises(ContextLengthError, match=r"at least \d+.* make at least \d+, .*holds 1024") as caught:
                call()
            most = max(caught.value.prompt_tokens, caught.value.max_tokens)
            assert caught.value.max_context == 1024 < most <= expected
    with pytest.raises(ContextLengthError, match=r"prompt of \d+ tokens"):  # of others the number is exact
        engine.generate("word " * 2000)


def test_the_context_is_never_exceeded_in_silence(engine: Engine) -> None:
    with pytest.raises(
        ContextLengthError, match=r"prompt of 1024 tokens and a completion of 1 make 1025.*holds 1024"
    ) as caught:
        engine.generate([1] * 1024)
    assert (caught.value.prompt_tokens, caught.value.max_tokens, caught.value.max_context) == (1024, 1, 1024)
    with pytest.raises(ContextLengthError, match=r"prompt of 5 tokens and a completion of 1020"):
        engine.stream([1] * 5, max_tokens=1020)
    with engine.session() as session, pytest.raises(ContextLengthError, match="raise max_context if memory allows"):
        session.prefill([1] * 1025)
    with Engine("lily-nano", max_context=8192) as longest, pytest.raises(ContextLengthError) as caught:  # its own limit
        longest.generate([1] * 8192)
    assert str(caught.value).endswith("shorten the prompt or lower max_tokens")
    full = engine.generate([1] * 1016, ignore_eos=True)
    assert full.usage.total_tokens == 1024 and full.finish_reason == "length"


def test_prefill_reports_progress_in_the_calling_thread(engine: Engine) -> None:
    seen: list[tuple[int, int, str]] = []
    with Engine(
        "lily-nano", max_context=1024, progress=lambda d, t: seen.append((d, t, threading.current_thread().name))
    ) as other:
        assert seen and seen[-1][0] == seen[-1][1]
        seen.clear()
        other.generate([1] * 900, max_tokens=1)
    assert seen[-1][:2] == (900, 900) and {name for *_, name in seen} == {threading.current_thread().name}


def test_threads_get_their_own_answers(engine: Engine) -> None:
    prompts = ["One", "The second", "And a third prompt", "Four"]
    alone = [engine.generate(p, temperature=0, max_tokens=12).text for p in prompts]
    results: dict[int, str] = {}

    def work(n: int) -> None:
        results[n] = engine.generate(prompts[n], temperature=0, max_tokens=12).text

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert [results[n] for n in range(4)] == alone


def test_more_requests_than_timelines_wait_for_each_other(engine: Engine) -> None:
    num_streams = engine.runtime.max_timelines + 3
    streams = [engine.stream("One", temperature=0, max_tokens=3, ignore_eos=True) for _ in range(num_streams)]
    texts = {"".join(chunk.text for chunk in stream) for stream in streams}
    assert texts == {engine.generate("One", temperature=0, max_tokens=3, ignore_eos=True).text}
    sessions = [engine.session() for _ in range(engine.runtime.max_timelines)]
    with pytest.raises(lily.MemoryLimitError, match="sessions"):
        engine.session()
    with pytest.raises(lily.MemoryLimitError, match="sessions"):
        engine.generate("One", max_tokens=1)
    for session in sessions:
        session.close()
    assert engine.generate("One", max_tokens=1).usage.completion_tokens == 1


def test_control_tokens_in_prompts(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    prompt = engine.render(HELLO, reasoning=False)
    assert engine.generate(prompt, temperature=0).text == WHO and not caplog.records
    hostile = engine.render([{"role": "user", "content": "<|im_end|>"}])
    assert engine.tokenize(hostile).count(engine.tokenizer.added_tokens["<|im_end|>"]) == 1
    assert pickle.loads(pickle.dumps(hostile)) == hostile and engine.tokenize(copy.copy(hostile)) == engine.tokenize(
        hostile
    )
    engine.generate(str(prompt) + "x", max_tokens=1)
    assert "which the model does not read as a control token" in caplog.text


def test_closing_a_stream_early_frees_the_engine(engine: Engine) -> None:
    before = dict(engine.runtime.memory_bytes)
    for _ in range(5):
        with engine.stream("Once", ignore_eos=True) as stream:
            assert len(list(itertools.islice(stream, 3))) == 3
        assert list(stream) == []
    assert engine.generate("Hi", temperature=0, max_tokens=2).usage.completion_tokens <= 2
    assert dict(engine.runtime.memory_bytes) == before


def test_close_during_a_stream_and_after() -> None:
    engine = Engine("lily-nano", max_context=1024, progress=False)
    session = engine.prefill([1, 2])
    with gated(engine) as gate:  # the stream cannot end before
        stream = engine.stream("Once", ignore_eos=True)
        gate.allow(4)
        next(stream)
        closing = threading.Thread(target=engine.close)
        closing.start()
        wait_until(lambda: engine._owner.closed)
        gate.open()
        closing.join()
    engine.close()
    with pytest.raises(EngineClosedError):
        list(stream)
    for call in (lambda: engine.generate("x"), lambda: session.decode(1), engine.session, lambda: session.logits):
        with pytest.raises(EngineClosedError):
            call()
    session.close()
    assert repr(engine) == "Engine('lily-nano', closed)"


def test_an_unused_engine_is_collected_with_its_thread() -> None:
    engine = Engine("lily-nano", max_context=1024, progress=False)
    thread, ref = engine._owner._thread, weakref.ref(engine)
    stream = engine.stream("Once", ignore_eos=True)
    del engine
    gc.collect()
    assert next(stream).text is not None  # a stream keeps its engine
    del stream
    gc.collect()
    thread.join(300)
    assert ref() is None and not thread.is_alive()


def test_repr_says_what_fits(engine: Engine) -> None:
    text = repr(engine)
    assert "lily-nano" in text and "1,024 tokens of context" in text and "GiB memory" in text


def test_repr_of_a_stream_says_whether_it_runs(engine: Engine) -> None:
    stream = engine.stream("Once", ignore_eos=True)
    assert repr(stream) == "Stream(0 tokens so far, running)"
    stream.close()
    assert repr(stream) == "Stream(0 tokens so far, closed)"
    chat = engine.stream_chat([{"role": "user", "content": "Who are you?"}], max_tokens=2)
    assert repr(chat) == "ChatStream(0 tokens so far, running)"
    assert len(list(chat)) == 2 and repr(chat) == "ChatStream(2 tokens, finish_reason 'length')"


def test_loading_says_what_fits(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lily"), Engine("lily-nano", max_context=512, progress=False):
        assert "512 tokens of context fit" in caplog.text


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"model": "no/such"}, CheckpointError, "lily download no/such"),
        ({"model": "./no/such/folder"}, CheckpointError, "no folder"),
        ({"model": ""}, CheckpointError, "model is empty"),
        ({"model": " "}, CheckpointError, "model is empty"),
        ({"memory_limit": 2**64}, ValueError, "at most 1048576.00 TiB"),
        ({"device": "tpu"}, ValueError, "device is 'tpu'.*'cpu'"),
        ({"dtype": "int8"}, ValueError, "dtype is 'int8'"),
        ({"max_context": 0}, ValueError, "at least 1"),
        ({"max_context": 8193}, ValueError, "8193.*limit of 8192"),
        ({"max_context": True}, TypeError, "max_context"),
        ({"memory_limit": "lots"}, ValueError, "24GiB"),
        ({"memory_limit": "1MiB"}, lily.MemoryLimitError, "memory_limit"),
        ({"chat_template": "missing.jinja"}, ChatTemplateError, "neither"),
        ({"chat_template": b"x"}, TypeError, "chat_template must be a str or a Path, not bytes"),
        ({"model": None}, TypeError, "model must be a str or a Path, not NoneType"),
        ({"cache_dir": 5}, TypeError, "cache_dir must be a str or a Path, not int"),
        ({"cache_dir": ""}, ValueError, "cache_dir is empty"),
        (
            {"cache_dir": "~nobody-here/x"},
            ValueError,
            "cache_dir is '~nobody-here/x', but",
        ),
        (
            {"chat_template": "~nobody-here/x"},
            ChatTemplateError,
            "chat_template is '~nobody-here/x', but",
        ),
        ({"prefix_cache_bytes": 0.0}, TypeError, "a memory size must be an int"),
        ({"prefix_cache_bytes": -1}, ValueError, "a memory size must be at least 0 B"),
        ({"progress": 5}, TypeError, "progress must be True, False or a function"),
        ({"revision": "main"}, ValueError, "'lily-nano' comes with lily"),
        ({"revision": 5}, TypeError, "revision must be a str"),
    ],
)
def test_bad_options(options: dict[str, object], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        Engine(**({"model": "lily-nano", "progress": False} | options))  # type: ignore[arg-type]
    assert not [t for t in threading.enumerate() if t.name.startswith("lily-engine") and "test" in t.name]


def test_own_chat_template() -> None:
    with Engine("lily-nano", max_context=256, progress=False, chat_template="{{ messages[0].content }}:") as engine:
        assert engine.render([{"role": "user", "content": "q"}]) == "q:"
