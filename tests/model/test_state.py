"""Slots and pages that timelines and snapshots share: the same logits as a fresh computation, and exact accounts."""

import numpy as np
import pytest

from lily import _core
from lily.errors import MemoryLimitError
from tests.model.rig import Rig
from tests.model.support import FAMILIES, check_gate, decode_rows, load, prefill
from tests.oracles.forward import forward as step_by_step

TOKENS = (37 * np.arange(700) + 11) % 512


CHECKED = "checked,shuffled"


def forward(folder, token_ids):
    return step_by_step(folder, token_ids, chunk_size=64)


def idle(runtime):
    """What is free and kept when nobody holds anything."""
    use = runtime.state_use
    return {name: use[name] for name in ("free_slots", "free_pages", "kept_slots", "kept_pages", "reclaimable_pages")}


@pytest.mark.parametrize(
    ("family", "num_tokens", "debug"),
    [*((FAMILIES[0], n, "") for n in (1, 3, 97, 255, 256, 257)), (FAMILIES[1], 97, ""), (FAMILIES[1], 97, CHECKED)],
)
def test_a_snapshot_at_any_place_continues_exactly(checkpoint, family, num_tokens, debug):
    folder = checkpoint(family)
    runtime = load(folder, debug=debug)
    timeline = runtime.timeline()
    prefill(runtime, timeline, TOKENS[:num_tokens])
    snapshot = timeline.snapshot()
    assert snapshot.num_tokens == num_tokens
    decode_rows(runtime, timeline, [5, 6, 7])  # what comes later does not change what was kept
    reference = forward(folder, [*TOKENS[:num_tokens].tolist(), 9, 8])
    for _ in range(2):  # it is shared, not consumed
        other = runtime.timeline()
        other.restore(snapshot)
        assert other.num_tokens == num_tokens
        check_gate(decode_rows(runtime, other, [9, 8]), reference[-2:])
    timeline.restore(snapshot)
    check_gate(prefill(runtime, timeline, [9, 8]), reference[-1])
    check_gate(prefill(runtime, timeline, [7]), forward(folder, [*TOKENS[:num_tokens].tolist(), 9, 8, 7])[-1])


@pytest.mark.parametrize(("num_tokens", "debug"), [(256, ""), (300, ""), (100, CHECKED)])
def test_forks_diverge_on_their_own(checkpoint, num_tokens, debug):
    folder = checkpoint("qwen3_5_moe")
    runtime = load(folder, debug=debug)
    trunk = runtime.timeline()
    logits = prefill(runtime, trunk, TOKENS[:num_tokens])
    branches = [trunk, trunk.fork(), trunk.fork()]
    for branch in branches:
        np.testing.assert_array_equal(branch.logits, logits)
    # All in one step: the first keeps the shared page, the others write copies.
    for step in range(3):
        runtime.decode(branches, [10 + step, 20 + step, 30 + step])
    for branch, first in zip(branches, (10, 20, 30), strict=True):
        expected = forward(folder, [*TOKENS[:num_tokens].tolist(), first, first + 1, first + 2])[-1]
        check_gate(branch.logits, expected)


def test_a_fork_takes_along_what_the_next_draw_needs(checkpoint):
    runtime = load(checkpoint("qwen3_5_moe"))
    timeline = runtime.timeline()
    sampling = _core.Sampling(repetition_penalty=1.5, frequency_penalty=0.7)
    timeline.set_token_counts([1, 2, 3], [])
    timeline.set_token_mask(np.full(16, 0x0F0F0F0F, np.uint32))
    runtime.prefill(timeline, np.array([1, 2, 3], np.uint32), wants_logits=True, sampling=sampling)
    fork = timeline.fork()
    for _ in range(5):
        (a,) = runtime.decode([timeline], None, sampling=[sampling])
        (b,) = runtime.decode([fork], None, sampling=[sampling])
        assert a.token_id == b.token_id and (a.token_id % 32) % 8 < 4


def test_accounts_are_exact(checkpoint):
    runtime = load(checkpoint("qwen3_5_moe"), memory_limit=64 << 20)
    use = runtime.state_use
    start = idle(runtime)
    slot, page = use["slot_bytes"], use["page_bytes"]

    timeline = runtime.timeline()
    assert idle(runtime) == start, "an empty timeline needs nothing"
    prefill(runtime, timeline, TOKENS[:300])
    assert idle(runtime) == start | {"free_slots": start["free_slots"] - 1, "free_pages": start["free_pages"] - 2}
    snapshot, again = timeline.snapshot(), timeline.snapshot()
    assert idle(runtime) == start | {
        "free_slots": start["free_slots"] - 1,
        "free_pages": start["free_pages"] - 2,
        "kept_slots": 1,
        "kept_pages": 2,
    }
    assert runtime.state_use["snapshot_bytes"] == slot + 2 * page, "one state, kept twice, counts once"
    runtime.decode([timeline], [1])  # appends to the shared page
    assert runtime.state_use["free_pages"] == start["free_pages"] - 2
    assert runtime.state_use["free_slots"] == start["free_slots"] - 2
    other = runtime.timeline()
    other.restore(snapshot)
    runtime.decode([other], [2])  # must not: copies it
    assert runtime.state_use["free_pages"] == start["free_pages"] - 3
    del snapshot
    assert runtime.state_use["kept_pages"] == 2
    timeline.close()
    other.close()
    assert runtime.state_use["reclaimable_pages"] == 2
    del again
    assert idle(runtime) == start


def test_memory_for_a_request_is_taken_before_it_runs(checkpoint):
    folder = checkpoint("qwen3_5_moe")
    runtime = load(folder, memory_limit=(16 << 20) - 4 * 262144, prefix_cache_bytes=0, max_context=2048)
    page, total = runtime.state_use["page_bytes"], runtime.state_use["free_pages"]
    first, second = runtime.timeline(), runtime.timeline()
    first.reserve(2048)
    left = total - 8
    assert 0 < left < 8, left
    assert runtime.state_use["free_pages"] == left
    with pytest.raises(MemoryLimitError, match="smaller max_tokens, close other sessions") as caught:
        second.reserve(256 * left + 1)
    assert caught.value.required_bytes == (left + 1) * page
    assert caught.value.available_bytes == left * page and caught.value.limit_bytes == total * page
    assert second.num_tokens == 0 and runtime.state_use["free_pages"] == left, "nothing was taken"
    second.reserve(256 * left)
    assert runtime.state_use["free_pages"] == 0
    with pytest.raises(MemoryLimitError, match="another timeline"):
        first.fork()
    # What was reserved can be used although the pool is empty, whatever others do meanwhile.
    check_gate(prefill(runtime, first, TOKENS), forward(folder, TOKENS.tolist())[-1])
    check_gate(prefill(runtime, first, [1, 2]), forward(folder, [*TOKENS.tolist(), 1, 2])[-1])
    with pytest.raises(ValueError, match="exceed the context of 2048"):
        first.reserve(2049)


def test_whether_a_timeline_can_start_anew_is_known_before(checkpoint):
    runtime = load(
        checkpoint("qwen3_5_moe"), memory_limit=(16 << 20) - 4 * 262144, prefix_cache_bytes=1 << 20, max_context=2048
    )
    outcomes = set()
    for seed in range(120):
        rng = np.random.default_rng(seed)
        timelines = [runtime.timeline() for _ in range(2)]
        prefill(runtime, timelines[0], TOKENS[: rng.choice([40, 256, 300])])
        snapshot = timelines[0].snapshot()
        for timeline in timelines:
            if rng.random() < 0.5:
                timeline.restore(snapshot)
            if rng.random() < 0.5:
                runtime.decode([timeline], [1])
            if rng.random() < 0.5:
                timeline.reserve(min(2048, timeline.num_tokens + int(rng.integers(1, 1400))))
        from_snapshot, num_tokens = bool(rng.random() < 0.7), int(rng.integers(1, 2048))
        use, before = runtime.state_use, timelines[0].num_tokens
        try:
            timelines[0].check_restart(num_tokens, snapshot if from_snapshot else None)
            expected = True
        except MemoryLimitError as error:
            assert error.required_bytes > error.available_bytes
            expected = False
        assert runtime.state_use == use and timelines[0].num_tokens == before
        if from_snapshot:
            timelines[0].restore(snapshot)
        else:
            timelines[0].reset()
        del snapshot
        try:
            timelines[0].reserve(num_tokens)
            found = True
        except MemoryLimitError:
            found = False
        assert found == expected, seed
        outcomes.add((from_snapshot, found))
        for timeline in timelines:
            timeline.close()
    assert len(outcomes) == 4


def test_snapshots_stay_within_their_bytes(checkpoint):
    runtime = load(checkpoint("qwen3_5_moe"), prefix_cache_bytes=2 << 20)
    assert runtime.state_use["snapshot_limit_bytes"] == 2 << 20
    timeline = runtime.timeline()
    snapshots = []
    with pytest.raises(MemoryLimitError, match="raise prefix_cache_bytes") as caught:
        for token_id in range(100):
            runtime.decode([timeline], [token_id])
            snapshots.append(timeline.snapshot())
    use = runtime.state_use
    assert len(snapshots) == use["kept_slots"] == use["max_kept_slots"]
    assert use["snapshot_bytes"] == len(snapshots) * use["slot_bytes"] + use["page_bytes"] <= 2 << 20
    assert caught.value.limit_bytes == 2 << 20
    # Full or not: every timeline can still step.
    timelines = [runtime.timeline() for _ in range(runtime.max_timelines - 1)]
    for other in timelines:
        runtime.decode([other], [1])
        runtime.decode([other], [2])


def test_prefix_cache_bytes_at_load(checkpoint):
    folder = checkpoint("qwen3_5_moe")
    off = load(folder, prefix_cache_bytes=0)
    timeline = off.timeline()
    off.decode([timeline], [1])
    with pytest.raises(MemoryLimitError, match="a snapshot of 1 tokens"):
        timeline.snapshot()
    with pytest.raises(MemoryLimitError, match="or set it to 0"):
        load(folder, prefix_cache_bytes=1000)
    with pytest.raises(MemoryLimitError, match="or lower prefix_cache_bytes"):
        load(folder, prefix_cache_bytes=1 << 30)
    runtime = load(folder, prefix_cache_bytes=100 << 20)
    assert sum(runtime.memory_bytes.values()) <= 1 << 30


@pytest.mark.parametrize("limit", [1 << 45, 1 << 60])
def test_no_more_is_planned_than_could_ever_be_used(checkpoint, limit):
    """Not even of a budget that no machine has: bookkeeping of pages costs memory, too."""
    for options in ({}, {"prefix_cache_bytes": limit // 2}):
        runtime = load(checkpoint("qwen3_5_moe"), memory_limit=limit, max_context=1024, **options)
        use = runtime.state_use
        assert use["snapshot_limit_bytes"] >= limit // 8 and use["max_kept_slots"] == 4096
        assert use["free_pages"] == (32 + 4096) * 4, "those of all timelines and snapshots at full length"
        timeline = runtime.timeline()
        check_gate(
            prefill(runtime, timeline, TOKENS[:20]), forward(checkpoint("qwen3_5_moe"), TOKENS[:20].tolist())[-1]
        )
        assert timeline.snapshot().num_tokens == 20


def test_a_cache_of_one_snapshot(checkpoint):
    """The least that is one: a slot and a page. It changes hands."""
    use = load(checkpoint("qwen3_5_moe")).state_use
    least = use["slot_bytes"] + use["page_bytes"]
    with Rig(checkpoint("qwen3_5_moe"), prefix_cache_bytes=least) as rig:
        for seed in range(4):
            prompt = TOKENS[seed : seed + 40].tolist()
            assert [rig.reused(prompt)[0] for _ in range(2)] == [0, 39]
            assert rig.cache.stats().num_snapshots == 1 and rig.cache.stats().snapshot_bytes == least
        long = TOKENS[:300].tolist()
        assert [rig.reused(long)[0] for _ in range(2)] == [0, 0], "two pages are more than it may hold"
        assert rig.cache.stats().snapshot_bytes <= least


@pytest.mark.parametrize(("family", "debug"), [*((family, "") for family in FAMILIES), (FAMILIES[0], CHECKED)])
def test_state_leaves_and_comes_back(checkpoint, family, debug):
    folder = checkpoint(family)
    runtime, other_runtime = load(folder, debug=debug), load(folder)
    timeline = runtime.timeline()
    logits = prefill(runtime, timeline, TOKENS[:300])
    recurrent_state, conv_state, kv = timeline.read_state()
    assert all(layer.shape == (2, 2, 300, 64) for layer in kv) and len(kv) == 1
    back = other_runtime.timeline()
    back.load_state(300, recurrent_state, conv_state, kv, logits)
    np.testing.assert_array_equal(back.logits, logits)
    check_gate(decode_rows(other_runtime, back, [4]), forward(folder, [*TOKENS[:300].tolist(), 4])[-1])
    with pytest.raises(ValueError, match="kv has 0 layers; this model needs 1"):
        back.load_state(300, recurrent_state, conv_state, [])
    with pytest.raises(ValueError, match="conv_state has"):
        back.load_state(300, recurrent_state, recurrent_state, kv)
    with pytest.raises(ValueError, match="without tokens has no state"):
        runtime.timeline().snapshot()


def test_snapshots_of_a_closed_runtime(checkpoint):
    runtime, other = load(checkpoint("qwen3_5_moe")), load(checkpoint("qwen3_5_moe"))
    timeline = runtime.timeline()
    runtime.decode([timeline], [1])
    snapshot = timeline.snapshot()
    with pytest.raises(ValueError, match="another runtime"):
        other.timeline().restore(snapshot)
    runtime.close()
    assert snapshot.num_tokens == 1
    with pytest.raises(RuntimeError, match="closed"):
        snapshot.read_state()
