"""State on the Metal device: shared, in files and after failures, on small checkpoints; more in test_behaviours.py."""

import numpy as np
import pytest

from lily import Engine
from lily.errors import DeviceError, SnapshotError
from tests.model.metal import require_metal
from tests.model.replay import replay
from tests.model.rig import Rig, tokens
from tests.model.support import HAIR, check_gate, decode_rows, load, nearest_choice, prefill
from tests.oracles.forward import forward

GATE = {"ratio": 0.004, "divergence": 5e-4, "gap": 0.1}
PROMPT = tokens(1, 258)  # to just behind a page
TIMEOUT = 2  # MTLCommandBufferErrorTimeout
PAGE_FAULT = 3  # MTLCommandBufferErrorPageFault


@pytest.fixture(scope="module", autouse=True)
def metal():
    require_metal()


@pytest.fixture
def failures():
    """Function that makes all later command buffers end with an error of Metal, or none."""
    control = pytest.importorskip("tests.softmetal.control")
    if not control.is_present():
        pytest.skip("this build has no software Metal")
    control.take_reports()
    yield lambda code: control.configure(fail_code=code)
    control.configure()
    assert control.take_reports() == [], "nothing was misused on the way"


@pytest.fixture
def rig(checkpoint):
    made = []

    def make(**options):
        options = {"max_context": 512} | options
        made.append(Rig(checkpoint("qwen3_5_moe"), device="metal", dtype="float16", **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_snapshots_and_forks_share_pages_and_diverge(checkpoint):
    folder = checkpoint("qwen3_5_moe")
    runtime = load(folder, device="metal", dtype="float16", max_context=512)
    start = runtime.state_use
    trunk = runtime.timeline()
    logits = prefill(runtime, trunk, PROMPT)
    branches = [trunk, trunk.fork(), trunk.fork()]
    np.testing.assert_array_equal(branches[2].logits, logits)
    snapshot = trunk.snapshot()
    assert runtime.state_use["free_pages"] == start["free_pages"] - 2, "all share two pages"
    runtime.decode(branches, [10, 20, 30])
    assert runtime.state_use["free_pages"] == start["free_pages"] - 4, (
        "the first appends, the others copy the last page"
    )
    alone = load(folder, device="metal", dtype="float16", max_context=512)
    computed = (tuple(PROMPT), True)
    for row, token_id in enumerate((10, 20, 30)):
        steps = (computed, ((token_id,), (row, (258, 258, 258))))
        np.testing.assert_array_equal(branches[row].logits, replay(alone, steps))
    back = runtime.timeline()
    back.restore(snapshot)
    runtime.decode([back], [9])
    np.testing.assert_array_equal(back.logits, replay(alone, (computed, ((9,), (0, (258,))))))


def test_state_goes_from_device_to_device(checkpoint):
    folder, prompt = checkpoint("qwen3_next"), tokens(5, 40)
    assert nearest_choice(folder, [*prompt, 5]) > HAIR, "each device must choose the reference's experts"
    reference = forward(folder, [*prompt, 5], chunk_size=64)[-1]
    devices = [load(folder, device=name, dtype="float16", max_context=512) for name in ("metal", "cpu")]
    for source, target in (devices, devices[::-1]):
        timeline, copy = source.timeline(), target.timeline()
        logits = prefill(source, timeline, prompt)
        copy.load_state(len(prompt), *timeline.read_state(), logits)
        np.testing.assert_array_equal(copy.logits, logits)
        check_gate(decode_rows(target, copy, [5]), reference, **GATE)


def test_a_repeat_is_nearly_free_and_sessions_move_between_engines(tmp_path):
    options = {"max_context": 512, "prefix_cache_bytes": "16MiB", "progress": False}
    path, other_path = tmp_path / "metal.lily", tmp_path / "cpu.lily"
    with (
        Engine("lily-nano", device="metal", **options) as engine,
        Engine("lily-nano", device="cpu", dtype="float16", **options) as cpu,
        Engine("lily-nano", device="cpu", dtype="float32", **options) as exact,
    ):
        prompt = engine.tokenize("The quick brown fox")
        first = engine.generate(prompt, max_tokens=3, temperature=0, ignore_eos=True)
        second = engine.generate(prompt, max_tokens=3, temperature=0, ignore_eos=True)
        assert (first.usage.cached_tokens, second.usage.cached_tokens) == (0, len(prompt) - 1)
        assert first.token_ids == second.token_ids
        with engine.prefill(prompt) as session, cpu.prefill(prompt) as other:
            session.save(path)
            other.save(other_path)
        with cpu.load_session(path) as here, engine.load_session(other_path) as there:
            assert here.token_ids == there.token_ids == prompt
            here.decode(first.token_ids[0])
            there.decode(first.token_ids[0])
            check_gate(here.logits, there.logits.astype(np.float64), **GATE)
        with pytest.raises(SnapshotError, match="dtype"):
            exact.load_session(path)


def test_a_device_error_spares_sessions_and_cache(rig, failures):
    one, prompts = rig(prefix_cache_bytes=3 << 20), [tokens(seed, 20) for seed in range(3)]
    expected = [one.reused([*prompt, 7])[1].astype(np.float64) for prompt in prompts]
    with one.session() as first, one.session() as second, one.session() as third:
        first.prefill(prompts[0])
        second.prefill(prompts[1])
        failures(TIMEOUT)
        with pytest.raises(DeviceError) as caught:
            first.decode(7)
        assert (caught.value.code, caught.value.fatal) == ("gpu_timeout", False)
        with pytest.raises(DeviceError):
            third.prefill(tokens(9, 30))
        failures(0)
        assert first.token_ids == prompts[0] and third.token_ids == []
        with pytest.raises(ValueError, match="no logits"):
            _ = first.logits
        for session, logits in ((second, expected[1]), (first, expected[0])):
            session.decode(7)
            check_gate(session.logits, logits, **GATE)
        assert third.prefill([*prompts[2], 7]) == len(prompts[2]), "what the cache holds is as it was"
        check_gate(third.logits, expected[2], **GATE)


def test_a_prefill_that_failed_midway_resumes(rig, failures):
    one, prompt = rig(max_context=640), tokens(5, 530)

    class Failing:
        """The runtime, on a device whose second chunk fails."""

        def __getattr__(self, name):
            return getattr(one.runtime, name)

        def prefill(self, timeline, *arguments, **options):
            failures(TIMEOUT if timeline.num_tokens else 0)
            return one.runtime.prefill(timeline, *arguments, **options)

    with one.session() as session:
        session._runtime = Failing()
        with pytest.raises(DeviceError, match="Metal failed to run"):
            session.prefill(prompt)
        assert session.num_computed_tokens == 512
    failures(0)
    reused, logits = one.reused(prompt)
    assert reused == 512
    timeline = one.runtime.timeline()
    check_gate(logits, prefill(one.runtime, timeline, prompt).astype(np.float64), **GATE)


def test_an_engine_serves_on_after_a_device_error(failures):
    with Engine("lily-nano", device="metal", max_context=512, progress=False) as engine:
        prompt = engine.tokenize("The quick brown fox")
        expected = engine.generate(prompt, max_tokens=3, temperature=0, ignore_eos=True).token_ids
        failures(TIMEOUT)
        with pytest.raises(DeviceError, match="macOS ended work"):
            engine.generate(prompt, max_tokens=3)
        failures(0)
        assert engine.generate(prompt, max_tokens=3, temperature=0, ignore_eos=True).token_ids == expected


def test_a_fatal_device_error_says_so_and_a_new_engine_works(rig, failures):
    one = rig()
    with one.session() as session:
        failures(PAGE_FAULT)
        for _ in range(2):
            with pytest.raises(DeviceError) as caught:
                session.prefill([1, 2, 3])
            assert caught.value.fatal
        failures(0)
        with pytest.raises(DeviceError, match="make a new engine"):
            session.prefill([1, 2, 3])
    assert rig().reused([1, 2, 3])[0] == 0
