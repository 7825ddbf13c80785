"""What lily promises about state and memory, by number, on each device; most answer a fault seen in other engines.

How the same looks through the API: tests/api/test_prefix_cache.py.
"""

import json
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from bench.ledger import Ledger, Machine
from lily.disk_cache import DiskCache
from lily.errors import DeviceError, MemoryLimitError, SnapshotError
from lily.state_file import StateFile
from tests.model.metal import require_metal
from tests.model.rig import BORDER, FINGERPRINTS, Rig, tokens
from tests.model.support import check_gate, least_growth, resident_bytes
from tests.softmetal import control

MAX_BUFFER_SECONDS = 0.1  # kBudgetSeconds of the Metal device
GPU_TIMEOUT = 2  # MTLCommandBufferErrorTimeout
STEM = [BORDER, *tokens(0, 80)]  # a system prompt
GATE = {"cpu": {}, "metal": {"ratio": 0.004, "divergence": 5e-4, "gap": 0.1}}  # of check_gate
OPTIONS = {"cpu": {"dtype": "float32"}, "metal": {"dtype": "float16"}}


@pytest.fixture(scope="module", params=OPTIONS)
def device(request):
    if request.param == "metal":
        require_metal()
    return request.param


@pytest.fixture
def make_rig(checkpoint, device):
    made = []

    def make(**options):
        options = {"max_context": 640, "prefix_cache_bytes": 8 << 20, "device": device} | OPTIONS[device] | options
        made.append(Rig(checkpoint("qwen3_5_moe"), **options))
        return made[-1]

    yield make
    for rig in made:
        rig.close()
        if rig.disk is not None:
            rig.disk.close()


def greedy(rig, prompt, num_tokens=4):
    """How much of the prompt was reused, and the tokens that follow."""
    with rig.session() as session:
        reused = session.prefill(prompt)
        drawn = []
        for _ in range(num_tokens):
            drawn.append(int(session.logits.argmax()))
            session.decode(drawn[-1])
        return reused, drawn


def user(seed, length=12):
    """A user's message behind the system prompt, and the start of the answer."""
    return [*STEM, BORDER, *tokens(seed, length), BORDER, 1]


def settled(rig):
    """What is in use when closing, which is posted, is done."""
    rig.owner.call(lambda: None)
    return rig.runtime.state_use


def test_behaviour_1_an_identical_prompt_costs_one_token(make_rig):
    rig = make_rig()
    for prompt in (tokens(1, 90), user(2)):
        first, second = greedy(rig, prompt), greedy(rig, prompt)
        assert second[0] >= len(prompt) - 1 > first[0]
        assert second[1] == first[1]


def test_behaviour_2_endings_and_edits_reuse_the_stem(make_rig):
    rig = make_rig()
    assert rig.reused(user(0))[0] == 0
    assert [rig.reused(user(seed))[0] for seed in range(1, 11)] == [len(STEM)] * 10
    history = [*user(1), *tokens(50, 20), BORDER, *tokens(51, 20)]  # an answer, then the next message
    rig.reused([*history, BORDER, 1])
    edited = [*history[:-20], *tokens(52, 25), BORDER, 1]
    assert rig.reused(edited)[0] == len(history) - 21, "up to the end of the answer"
    assert rig.reused(edited)[0] == len(edited) - 1, "regenerate"


def test_behaviour_3_a_flood_leaves_the_system_prompt_and_keeps_the_budget(make_rig):
    rig = make_rig(prefix_cache_bytes=3 << 20)
    rig.reused(user(0))
    for seed in range(100, 130):
        rig.reused(tokens(seed, 9))
        use = settled(rig)
        assert 0 < use["snapshot_bytes"] <= use["snapshot_limit_bytes"] == 3 << 20
    assert rig.cache.stats().evictions > 20
    assert rig.reused(user(1))[0] == len(STEM)


@pytest.mark.parametrize("place", [2, 97, 251, 257])
def test_behaviour_4_a_snapshot_at_any_place_restores_exactly(make_rig, place):
    rig = make_rig()
    prompt = tokens(place, place + 1)
    reused, logits = rig.reused(prompt)
    assert reused == 0
    for _ in range(2):  # a state is shared, not used up; and the last token is the same chunk as before
        reused, again = rig.reused(prompt)
        assert reused == place
        np.testing.assert_array_equal(again, logits)


@pytest.mark.parametrize("damage", ["cut", "flip", "fingerprint"])
def test_behaviour_5_damage_is_a_miss_or_an_error(make_rig, tmp_path, damage):
    def damaged(path):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content if damage == "flip" else content[:-1])

    fingerprints = {"model": "another"} if damage == "fingerprint" else FINGERPRINTS
    prompt = tokens(5, 90)
    one = make_rig(disk=DiskCache(tmp_path, FINGERPRINTS))
    expected = greedy(one, prompt)[1]
    with one.session() as session:
        session.prefill(prompt)
        session.save(tmp_path / "saved.lily")
    one.disk.flush()
    if damage != "fingerprint":
        for path in tmp_path.rglob("*.lily"):
            damaged(path)
    with pytest.raises(SnapshotError):
        StateFile.read(tmp_path / "saved.lily", fingerprints)
    other = make_rig(disk=DiskCache(tmp_path, fingerprints))
    assert greedy(other, prompt) == (0, expected)


def test_behaviour_6_explain_names_where_prompts_part(make_rig):
    """A billing line in front of the system prompt. /v1/messages removes it: tests/server/test_anthropic_client.py."""
    rig = make_rig()
    first, second = ([BORDER, 7, 7, stamp, *tokens(0, 60)] for stamp in (17, 18))
    rig.reused(first)
    explained = rig.cache.explain(second)
    assert (explained.common_tokens, explained.cached_tokens) == (3, 0)
    assert (explained.token_id, explained.cached_token_ids) == (18, (17,))
    assert explained.reason == "token 3 differs from the nearest cached prompt; no snapshot lies before it"
    assert rig.reused(second)[0] == 0 and rig.cache.stats().last_miss_reason == explained.reason


def test_behaviour_7_what_does_not_fit_is_refused_before_it_runs(make_rig, device):
    rig = make_rig(max_context=2048, memory_limit={"cpu": 31 << 19, "metal": 28 << 18}[device], prefix_cache_bytes=0)
    ran = []
    rig.runtime = CountingRuntime(rig.runtime, ran)
    other = rig.runtime.timeline()
    other.reserve(2048)
    assert 0 < rig.runtime.state_use["free_pages"] < 8, "one full session fits, but not two"
    with rig.session() as session:
        with pytest.raises(MemoryLimitError) as caught:
            session.prefill(tokens(1, 2048))
        assert caught.value.required_bytes > caught.value.available_bytes > 0 and caught.value.suggestion
        assert ran == []
        session.prefill(tokens(1, 20))
        assert ran == [20]


class CountingRuntime:
    def __init__(self, runtime, ran):
        self._runtime, self._ran = runtime, ran

    def prefill(self, timeline, token_ids, **options):
        self._ran.append(len(token_ids))
        return self._runtime.prefill(timeline, token_ids, **options)

    def __getattr__(self, name):
        return getattr(self._runtime, name)


def test_behaviour_8_a_device_error_spares_everything_else(make_rig, device):
    rig = make_rig()
    expected = [rig.reused([*tokens(seed, 20), 7])[1] for seed in range(2)]
    with rig.session() as one, rig.session() as other:
        one.prefill(tokens(0, 20))
        other.prefill(tokens(1, 20))
        if device == "metal":
            if not control.is_present():
                pytest.skip("this build has no software Metal")
            control.configure(fail_code=GPU_TIMEOUT)
            try:
                with pytest.raises(DeviceError) as caught:
                    one.decode(7)
            finally:
                control.configure()
            assert (caught.value.code, caught.value.fatal) == ("gpu_timeout", False)
        else:  # a CPU does not fail; a damaged state does
            with rig.session() as third:
                third.prefill(tokens(0, 20))
                recurrent_state, conv_state, kv = third._timeline.read_state()
                third._timeline.load_state(20, np.full_like(recurrent_state, np.nan), conv_state, kv)
                with pytest.raises(DeviceError) as caught:
                    third.decode(7)
            assert (caught.value.code, caught.value.fatal) == ("nan", False)
        for session, logits in ((other, expected[1]), (one, expected[0])):
            session.prefill([*session.token_ids, 7])
            check_gate(session.logits, logits.astype(np.float64), **GATE[device])
    assert rig.reused([*tokens(1, 20), 7])[0] == 20, "what the cache holds is as it was"


@pytest.mark.parametrize("chunk_tokens", [512, 1024])
def test_behaviour_9_command_buffers_stay_short_at_128k_tokens(chunk_tokens):
    """On the slowest GPU, an M1, by the ledger's bytes and operations. The device cuts between dispatches, as here, and
    corrects itself by what it measures: "split" in tests/device/test_metal_conformance.py."""
    config = json.loads((Path(__file__).parent / "configs" / "qwen3.6-35b-a3b-mlx-4bit.json").read_text())
    machine = Machine(bandwidth=60e9, matrix_rate=1e12, level_seconds=0)
    ledger = Ledger(config, 131_072, machine)
    program = ledger.outlines[chunk_tokens].prefill(chunk_tokens)
    buffers = []
    for position in (0, 32_768, 131_072 - chunk_tokens):
        lengths = [0.0]
        for name, _, args, ranges in program:
            cost = ledger.costs.of(name, args, ranges, position)
            seconds = machine.seconds(cost.bytes_read + cost.bytes_written, cost.flops)
            if lengths[-1] + seconds > MAX_BUFFER_SECONDS:
                lengths.append(0.0)
            lengths[-1] += seconds
        assert max(lengths) <= MAX_BUFFER_SECONDS, "a single dispatch is longer: nothing cuts it"
        buffers.append(len(lengths))
    assert buffers[0] < buffers[1] < buffers[2], "more work is more command buffers, not longer ones"


def test_behaviour_10_after_200_rounds_memory_is_where_it_was(make_rig, device):
    soak = hypothesis.settings().max_examples > hypothesis.settings.get_profile("default").max_examples
    rounds = 200 if soak or device == "cpu" else 60  # of which software Metal needs a fifth of a second each
    rig = make_rig(prefix_cache_bytes=2 << 20)
    conversation, levels, resident = STEM, set(), []
    for n in range(rounds):
        conversation = conversation if len(conversation) < 500 else STEM
        with rig.session() as session:
            session.prefill([*conversation, BORDER, *tokens(n, 4)])
            session.decode(3)
            conversation = session.token_ids
        use = settled(rig)
        assert use["snapshot_bytes"] <= use["snapshot_limit_bytes"]
        levels.add((use["free_slots"] + use["kept_slots"], use["kept_pages"] - use["reclaimable_pages"]))
        if (n + 1) % (rounds // 4) == 0:
            resident.append(resident_bytes())
    assert len(levels) == 1, "nothing is held but by snapshots"
    assert least_growth(resident) < 1 << 20
    rig.cache.clear()
    assert settled(rig)["snapshot_bytes"] == 0
