"""What the prefix cache keeps when memory is short, on a small random checkpoint."""

from contextlib import contextmanager

import numpy as np
import pytest

from lily.errors import MemoryLimitError
from tests.model.rig import BORDER, Rig, tokens
from tests.model.support import check_gate, least_growth, prefill, resident_bytes

LIMIT = 3 << 20  # bytes: 7 snapshots
STEM = [BORDER, *tokens(0, 150)]


@pytest.fixture
def rig(checkpoint):
    with Rig(checkpoint("qwen3_5_moe"), prefix_cache_bytes=LIMIT) as rig:
        yield rig


def chat(stem, seed, length=20):
    """A prompt of two messages, and the start of an answer."""
    return [*stem, BORDER, *tokens(seed, length), BORDER, 1]


def test_the_system_prompt_survives_any_flood(rig):
    assert rig.reused(chat(STEM, 1))[0] == 0
    for seed in range(100, 160):
        rig.reused(tokens(seed, 40))
        stats = rig.cache.stats()
        assert 0 < stats.snapshot_bytes <= stats.limit_bytes == LIMIT
    assert rig.cache.stats().evictions > 40
    assert rig.reused(chat(STEM, 2))[0] == len(STEM)
    # Used once, it also survives other system prompts, and those leave room for everything else.
    for seed in range(200, 260):
        rig.reused(chat([BORDER, *tokens(seed, 30)], seed))
    assert rig.reused(chat(STEM, 3))[0] == len(STEM)
    prompt = tokens(7, 60)
    rig.reused(prompt)
    assert rig.reused(prompt)[0] == len(prompt) - 1


def test_pinned_prompts_stay(rig):
    prompt = tokens(1, 60)
    assert rig.cache.pin(prompt) == 0
    rig.reused(prompt)
    assert rig.cache.pin(prompt) == len(prompt) - 1
    for seed in range(100, 140):
        rig.reused(tokens(seed, 40))
    assert rig.cache.explain(prompt).cached_tokens == len(prompt) - 1
    assert rig.cache.unpin(prompt) == len(prompt) - 1 and rig.cache.unpin(prompt) == 0
    for seed in range(200, 240):
        rig.reused(tokens(seed, 40))
    assert rig.cache.explain(prompt).cached_tokens == 0


def test_the_last_used_leaves_last(rig):
    prompts = [tokens(seed, 40) for seed in range(12)]
    for prompt in prompts:
        rig.reused(prompts[0])
        rig.reused(prompt)
    assert rig.cache.explain(prompts[0]).cached_tokens == 39
    assert rig.cache.explain(prompts[1]).cached_tokens == 0
    assert rig.cache.explain(prompts[11]).cached_tokens == 39


def test_places(rig):
    def places(prompt, start=0):
        return rig.cache.places(np.array(prompt, np.uint32), start)

    assert places([1]) == [] and places([1, 2]) == [1]
    assert places(tokens(1, 700)) == [699]
    raw = tokens(1, 5000)
    assert places(raw) == [1024, 2048, 4096, 4999] and places(raw, 2048) == [4096, 4999]
    prompt = chat([*STEM, BORDER, *tokens(1, 1000), BORDER, *tokens(2, 1200)], 3)
    # The ends of the first message, of the last two, the ends nearest to growing distances, and all but one token.
    assert places(prompt) == [151, 1024, 1152, 2353, 2374, len(prompt) - 1]
    rig.reused(tokens(1, 300))
    assert places([*tokens(1, 300)[:200], *tokens(9, 50)]) == [200, 249], "where a known prompt parts"
    assert places([*tokens(1, 300)[:40], *tokens(9, 50)]) == [89], "too little to be worth it"


def test_nothing_leaves_for_a_snapshot_that_has_no_room_alone(checkpoint):
    with Rig(checkpoint("qwen3_5_moe"), prefix_cache_bytes=2 << 20) as rig:
        short, long = tokens(1, 60), tokens(2, 2000)
        rig.reused(short)
        for reused in (0, 1024):
            assert rig.reused(long)[0] == reused, "its state after 1,024 tokens fits, that after 1,999 does not"
        assert rig.reused(short)[0] == 59
        stats = rig.cache.stats()
        assert stats.evictions == 0 and stats.num_snapshots == 2


@pytest.mark.parametrize("at", [0, 1])
def test_a_failed_prefill_keeps_what_it_computed(rig, at, monkeypatch):
    prompt = tokens(5, 1500)
    calls = []

    class Faulty:
        def __getattr__(self, name):
            return getattr(rig.runtime, name)

        def prefill(self, *arguments, **options):
            calls.append(len(arguments[1]))
            if len(calls) > at:
                raise RuntimeError("injected fault")
            return rig.runtime.prefill(*arguments, **options)

    with rig.session() as session:
        session._runtime = Faulty()
        with pytest.raises(RuntimeError, match="injected"):
            session.prefill(prompt)
        assert session.num_computed_tokens == at * rig.runtime.max_chunk_tokens
    reused, logits = rig.reused(prompt)
    assert reused == at * rig.runtime.max_chunk_tokens
    timeline = rig.runtime.timeline()
    check_gate(logits, prefill(rig.runtime, timeline, prompt).astype(np.float64))


def test_requests_go_before_snapshots(checkpoint):
    options = {"max_context": 2048, "memory_limit": 31 << 19, "prefix_cache_bytes": 1 << 20}
    with Rig(checkpoint("qwen3_5_moe"), **options) as rig, rig.session() as first, rig.session() as second:
        use = rig.runtime.state_use
        total, page = use["free_pages"], use["page_bytes"]
        assert 8 < total < 16, "pages for one full session, but not for two"
        prompt = tokens(1, 40)
        second.prefill(prompt)
        rig.cache.pin(prompt)
        first.prefill(tokens(2, 2048))
        logits = first.logits.copy()
        second.truncate(0)
        assert rig.runtime.state_use["kept_pages"] >= 1
        with pytest.raises(MemoryLimitError, match="close other sessions") as caught:
            second.prefill(tokens(3, 2048))
        error = caught.value
        assert error.limit_bytes == total * page and "memory_limit" in error.suggestion
        assert error.available_bytes < error.required_bytes == 8 * page
        assert second.num_computed_tokens == 0, "it failed before any work"
        assert rig.cache.explain(prompt).cached_tokens == 39, "nothing was given up in vain"
        fitting = tokens(4, 256 * (total - 8))
        second.prefill(fitting)
        assert rig.runtime.state_use["free_pages"] == 0 and rig.cache.explain(prompt).cached_tokens == 0
        np.testing.assert_array_equal(first.logits, logits)


@contextmanager
def little_memory(checkpoint, cache_bytes):
    """A rig whose memory another session holds, but for a few pages; a session, its prompt and its logits."""
    options = {"max_context": 2048, "memory_limit": 31 << 19, "prefix_cache_bytes": cache_bytes}
    with Rig(checkpoint("qwen3_5_moe"), **options) as rig, rig.session() as first, rig.session() as second:
        prompt = tokens(1, 40)
        second.prefill(prompt)
        logits = second.logits.copy()
        first.prefill(tokens(2, 2048))
        yield rig, second, prompt, logits


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_session_that_is_refused_memory_keeps_its_logits(checkpoint, cache_bytes):
    with little_memory(checkpoint, cache_bytes) as (_, second, prompt, logits):
        with pytest.raises(MemoryLimitError):
            second.prefill([*prompt, *tokens(3, 2000)])
        assert second.token_ids == prompt
        np.testing.assert_array_equal(second.logits, logits)
        second.decode(5)
        assert second.token_ids == [*prompt, 5]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_a_session_that_is_refused_memory_for_other_tokens_stays_as_it_is(checkpoint, cache_bytes):
    with little_memory(checkpoint, cache_bytes) as (rig, second, prompt, logits):
        use = rig.runtime.state_use
        for other in (tokens(3, 2000), [*prompt[:39], *tokens(3, 2000)]):
            with pytest.raises(MemoryLimitError):
                second.prefill(other)
            assert second.token_ids == prompt
            np.testing.assert_array_equal(second.logits, logits)
        assert rig.runtime.state_use == use, "nothing was given up in vain"
        # As many tokens as there is memory for, the session's own counted, are not refused.
        fitting = tokens(4, 256 * (use["free_pages"] + 1))
        second.prefill(fitting)
        assert second.token_ids == fitting and rig.runtime.state_use["free_pages"] == 0
        second.prefill(tokens(5, len(fitting)))


def test_200_rounds_end_at_the_same_memory(rig):
    levels, resident = set(), []
    conversation = STEM
    for n in range(200):
        conversation = conversation if len(conversation) < 1500 else STEM
        with rig.session() as session:
            session.prefill([*conversation, BORDER, *tokens(n, 25)])
            for token_id in tokens(n + 1000, 3):
                session.decode(token_id)
            conversation = session.token_ids
        rig.owner.call(lambda: None)
        use = rig.runtime.state_use
        assert use["snapshot_bytes"] <= LIMIT
        in_sessions = total_slots(use) - use["free_slots"] - use["kept_slots"]
        levels.add((in_sessions, use["kept_pages"] - use["reclaimable_pages"]))
        if n % 50 == 49:
            resident.append(resident_bytes())
    assert levels == {(0, 0)}, "nothing is held but by snapshots"
    assert least_growth(resident) < 1 << 20
    rig.cache.clear()
    assert rig.runtime.state_use["snapshot_bytes"] == 0


def test_the_process_stays_within_the_plan_and_gives_memory_back(checkpoint):
    limit, before = 32 << 20, resident_bytes()
    with Rig(checkpoint("qwen3_5_moe"), memory_limit=80 << 20, prefix_cache_bytes=limit) as rig:
        planned = sum(rig.runtime.memory_bytes.values())
        assert limit < planned <= 80 << 20
        for seed in range(100):
            rig.reused(tokens(seed, 250))
        stats = rig.cache.stats()
        assert stats.evictions > 20 and 3 * limit / 4 < stats.snapshot_bytes <= limit
        full = resident_bytes()
        assert full - before < planned + (8 << 20), "beside the plan there is only code, and small things"
        rig.cache.clear()
        assert full - resident_bytes() > 3 * stats.snapshot_bytes / 4
        assert rig.reused(tokens(99, 250))[0] == 0


def total_slots(use):
    return 2 * 32 + use["max_kept_slots"]
