from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lily import CancelledError, Engine
from lily.messages import Message
from lily.progress import Progress
from lily.state_file import StateFile
from tests.gated import gated

SYSTEM = "You are a terse clerk. " + "Answer in one word. " * 20


def text(seed: int, num_words: int) -> str:
    words = ["lily", "river", "stone", "cloud", "seven", "green", "paper", "wind"]
    return " ".join(words[n] for n in np.random.default_rng(seed).integers(0, len(words), num_words))


def conversation(user: str, system: str = SYSTEM) -> list[Message]:
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


@pytest.fixture(scope="module")
def uncached() -> Iterator[Engine]:
    with Engine("lily-nano", max_context=2560, prefix_cache_bytes=0, progress=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def shared() -> Iterator[Engine]:
    with Engine("lily-nano", max_context=2560, prefix_cache_bytes="256MiB", progress=False) as engine:
        yield engine


@pytest.fixture
def engine(shared: Engine) -> Engine:
    shared.prefix_cache.clear()
    return shared


def border(engine: Engine, user: str) -> int:
    """Number of tokens of the system message of a conversation."""
    ids = engine.tokenize(engine.render(conversation(user)))
    return ids.index(engine.tokenizer.added_tokens["<|im_start|>"], 1)


@pytest.mark.parametrize("num_words", [1, 97, 1100])
def test_the_same_prompt_twice(engine: Engine, uncached: Engine, num_words: int) -> None:
    ids = engine.tokenize(text(1, num_words))[:2000]
    expected = uncached.generate(ids, max_tokens=12, temperature=0, ignore_eos=True)
    first = engine.generate(ids, max_tokens=12, temperature=0, ignore_eos=True)
    second = engine.generate(ids, max_tokens=12, temperature=0, ignore_eos=True)
    assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, len(ids) - 1)
    assert first.token_ids == second.token_ids == expected.token_ids
    assert second.usage.prompt_tokens == len(ids)
    assert expected.usage.cached_tokens == 0


def test_endings_share_the_system_prompt(engine: Engine, uncached: Engine) -> None:
    stem = border(engine, "x")
    replies = [engine.chat(conversation(text(n, 5)), max_tokens=6, temperature=0) for n in range(10)]
    assert replies[0].usage.cached_tokens == 0
    assert all(stem <= reply.usage.cached_tokens < stem + 16 for reply in replies[1:])
    for n in (0, 9):
        assert uncached.chat(conversation(text(n, 5)), max_tokens=6, temperature=0).content == replies[n].content


def test_edited_and_repeated_messages_reuse_what_comes_before(engine: Engine) -> None:
    history: list[Message] = [
        *conversation(text(1, 20)),
        {"role": "assistant", "content": text(2, 30)},
        {"role": "user", "content": text(3, 20)},
    ]
    first = engine.chat(history, max_tokens=4)
    again = engine.chat(history, max_tokens=4)
    assert again.usage.cached_tokens == first.usage.prompt_tokens - 1
    edited: list[Message] = [*history[:-1], {"role": "user", "content": "Edited: " + text(4, 20)}]
    reply = engine.chat(edited, max_tokens=4)
    ids = engine.tokenize(engine.render(edited))
    starts = [n for n, i in enumerate(ids) if i == engine.tokenizer.added_tokens["<|im_start|>"]]
    assert reply.usage.cached_tokens >= starts[-2] > starts[1]


def test_the_next_turn_continues_behind_the_answer(engine: Engine) -> None:
    ids = engine.tokenize(text(1, 80))
    done = engine.generate(ids, max_tokens=20, ignore_eos=True)
    longer = [*ids, *done.token_ids, *engine.tokenize(" and so on")]
    assert engine.generate(longer, max_tokens=1).usage.cached_tokens == len(ids) + 19


def test_a_fork_in_raw_prompts_is_kept_when_it_is_seen(engine: Engine) -> None:
    stem = engine.tokenize(text(1, 150))
    prompts = [[*stem, *engine.tokenize(f"{n} {text(n + 10, 40)}")] for n in range(3)]
    assert [engine.generate(ids, max_tokens=1).usage.cached_tokens for ids in prompts[:2]] == [0, 0]
    assert engine.generate(prompts[2], max_tokens=1).usage.cached_tokens >= len(stem)


def test_explain_and_the_log_name_the_divergence(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    billing = ["billing id: 17;", "billing id: 18;"]
    prompts = [engine.tokenize(f"{line} {text(1, 80)}") for line in billing]
    assert engine.prefix_cache.explain(prompts[0]).reason == "the cache is empty"
    engine.generate(prompts[0], max_tokens=1)
    place = next(n for n, (a, b) in enumerate(zip(*prompts, strict=False)) if a != b)
    explained = engine.prefix_cache.explain(prompts[1])
    assert explained.common_tokens == place and explained.cached_tokens == 0
    assert explained.token_id == prompts[1][place] and explained.cached_token_ids == (prompts[0][place],)
    assert explained.reason == f"token {place} differs from the nearest cached prompt; no snapshot lies before it"
    with caplog.at_level(logging.INFO, "lily"):
        engine.generate(prompts[1], max_tokens=1)
    assert f"0 of {len(prompts[1])} tokens reused: {explained.reason}" in caplog.text
    assert engine.prefix_cache.stats().last_miss_reason == explained.reason
    assert "starts with all of it" in engine.prefix_cache.explain(prompts[1]).reason
    longer = engine.prefix_cache.explain([*prompts[1], 1, 2, 3])
    assert longer.cached_tokens == len(prompts[1]) - 1 and "goes on where" in longer.reason


def test_statistics(engine: Engine) -> None:
    before = engine.prefix_cache.stats()
    ids = engine.tokenize(text(1, 30))
    for _ in range(3):
        engine.generate(ids, max_tokens=1)
    after = engine.prefix_cache.stats()
    assert after.query_tokens - before.query_tokens == 3 * len(ids)
    assert after.hit_tokens - before.hit_tokens == 2 * (len(ids) - 1)
    assert after.num_snapshots == 1
    engine.prefix_cache.clear()
    assert engine.prefix_cache.stats().num_snapshots == engine.prefix_cache.stats().snapshot_bytes == 0


def test_a_cancelled_prefill_resumes(engine: Engine, uncached: Engine) -> None:
    ids = engine.tokenize(text(1, 1500))[:2000]
    with gated(engine) as gate:
        stream = engine.stream(ids, max_tokens=1)
        gate.allow(1)

        def close(progress: Progress) -> None:
            if progress.done:
                stream.close()
                gate.open()

        stream.on_progress(close)
        with pytest.raises(CancelledError) as caught:
            next(stream)
    assert caught.value.usage is not None and caught.value.usage.completion_tokens == 0
    retry = engine.generate(ids, max_tokens=5, temperature=0)
    assert retry.usage.cached_tokens >= 512
    assert retry.token_ids == uncached.generate(ids, max_tokens=5, temperature=0).token_ids


def test_threads_share_the_cache(engine: Engine, uncached: Engine) -> None:
    ids = engine.tokenize(text(1, 120))
    expected = uncached.generate(ids, max_tokens=8, temperature=0).token_ids
    results: list[tuple[int, ...]] = []

    def work() -> None:
        for _ in range(3):
            results.append(engine.generate(ids, max_tokens=8, temperature=0).token_ids)
            engine.prefix_cache.stats()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert results == [expected] * 12


@pytest.mark.parametrize("keeps_files", [False, True])
def test_a_request_that_waits_for_memory_looks_only_when_some_was_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_files: bool
) -> None:
    reads = []
    monkeypatch.setattr(StateFile, "read", lambda *args, read=StateFile.read: reads.append(args) or read(*args))
    running, waiting = [n * 37 % 4000 for n in range(300)], [n * 41 % 4000 for n in range(300)]
    with Engine(
        "lily-nano",
        max_context=2048,
        memory_limit="62MiB",
        prefix_cache_bytes="8MiB",
        cache_dir=tmp_path if keeps_files else None,
        progress=False,
    ) as engine:
        engine.generate(waiting, max_tokens=1)
        if keeps_files:
            engine.prefix_cache._disk.flush()  # type: ignore[union-attr]
            engine.prefix_cache.clear()
        before = engine.prefix_cache.stats()
        with gated(engine) as gate:
            gate.allow(200)  # the first one does not end before it is closed
            with engine.stream(running, max_tokens=1700, ignore_eos=True) as first:
                next(first)
                second = engine.stream(waiting, max_tokens=1700, ignore_eos=True)
                for _ in range(40):
                    next(first)
                assert second.poll() is None, "there is no room for both"
        next(second)
        second.close()
        after = engine.prefix_cache.stats()
    assert after.query_tokens - before.query_tokens == len(running) + len(waiting)
    assert after.hit_tokens - before.hit_tokens == len(waiting) - 1
    assert after.disk_hits == keeps_files and len(reads) <= 2 * keeps_files


def test_sessions_use_the_cache(engine: Engine) -> None:
    ids = engine.tokenize(text(1, 100))
    with engine.prefill(ids) as first, engine.session() as second:
        assert second.prefill(ids) == len(ids) - 1
        np.testing.assert_allclose(first.logits, second.logits, atol=1e-4 * np.abs(first.logits).max())
        second.decode(5)
        assert second.truncate(len(ids)) == len(ids) - 1, "the state was kept before the last token"
        assert second.token_ids == ids[:-1]
        with pytest.raises(ValueError, match="no logits yet"):
            _ = second.logits
        assert second.truncate(10**6) == len(ids) - 1
        assert second.truncate(5) == 0 and second.token_ids == []
        with pytest.raises(ValueError, match="at least 0"):
            second.truncate(-1)


def test_without_a_cache(uncached: Engine) -> None:
    ids = uncached.tokenize(text(1, 40))
    assert not uncached.prefix_cache.enabled
    for _ in range(2):
        assert uncached.generate(ids, max_tokens=2).usage.cached_tokens == 0
    assert uncached.prefix_cache.stats().query_tokens == 0
    with uncached.prefill(ids) as session:
        fork = session.fork()
        session.decode(1)
        assert session.truncate(len(ids)) == 0 and fork.token_ids == ids
        fork.close()


def test_questions_that_are_none(engine: Engine) -> None:
    cache = engine.prefix_cache
    engine.generate(engine.tokenize(text(1, 30)), max_tokens=1)
    for ask in (cache.pin, cache.unpin, cache.explain):
        for wrong in ("text", ["a"], [[1, 2]], [1.5], 3):
            with pytest.raises(TypeError, match="flat sequence of integers"):
                ask(wrong)  # type: ignore[arg-type]
        for outside in ([-1], [2**32], [2**70]):
            with pytest.raises((TypeError, ValueError), match="token ids"):
                ask(outside)
    assert cache.pin([]) == cache.unpin([]) == cache.explain([]).cached_tokens == 0
    assert cache.explain([4095 + 10]).cached_tokens == 0
