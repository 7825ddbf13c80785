"""Any mix of prefill, decode, fork, truncate, save, load, eviction and cancellation gives the logits of a fresh run.

Two references judge each result: a run of the same steps on a timeline of its own, to the bit, which sees every fault
of the state; and a run in chunks as large as they come, within the numerics gate.
"""

import os
import random
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from lily import _core
from lily.disk_cache import DiskCache
from lily.errors import CancelledError, ContextLengthError, DeviceError, SnapshotError
from lily.session import decode_sessions, locked
from lily.state_file import StateFile
from tests.kernels.harness import NANO
from tests.model.replay import replay
from tests.model.rig import BORDER, FINGERPRINTS, Rig, tokens
from tests.model.support import FAMILIES, HAIR, check_gate, nearest_choice, prefill
from tests.softmetal import control

MAX_SESSIONS = 4
GPU_TIMEOUT = 2  # MTLCommandBufferErrorTimeout
LENGTHS = st.one_of(st.integers(1, 12), st.integers(60, 70), st.sampled_from([255, 256, 257]))
# Few beginnings, so that prompts often share one, and messages to end in them.
PIECES = [
    tokens(0, 20),
    [BORDER, *tokens(1, 30)],
    [BORDER, *tokens(2, 250)],
    tokens(3, 64),
    [BORDER, BORDER],
    tokens(4, 7),
]


class Stop(Exception):
    pass


class SessionMachine(RuleBasedStateMachine):
    rig: Rig
    reference: Rig
    folder = None
    gate: ClassVar[dict[str, float]] = {}  # of check_gate
    longest = 600  # tokens of a prompt
    fails = False  # whether device errors can be injected
    checkpoint = None  # where near ties of the router are looked up, on devices that round to halves

    def __init__(self):
        super().__init__()
        self.sessions = []

    @initialize()
    def start(self):
        self.forget_everything()
        self.has_pinned = False
        self.idle = self.use()

    def forget_everything(self):
        self.rig.cache.clear()
        self.rig.disk.flush()
        for path in self.files():
            path.unlink()

    def files(self):
        return sorted(self.folder.rglob("*-*.lily"))

    def use(self):
        return self.rig.runtime.state_use

    def expected(self, token_ids):
        timeline = self.reference.runtime.timeline()
        try:
            return prefill(self.reference.runtime, timeline, token_ids).astype(np.float64)
        finally:
            timeline.close()

    def check(self, session, token_ids):
        assert session.token_ids == list(token_ids)
        logits, steps = session.logits.copy(), session._timeline.steps
        assert [token_id for chunk, _ in steps for token_id in chunk] == list(token_ids)
        np.testing.assert_array_equal(logits, replay(self.reference.runtime, steps))
        try:
            check_gate(logits, self.expected(token_ids), **self.gate)
        except AssertionError:
            # Another order of sums chooses another expert where two are near; the same steps left no doubt above.
            if self.checkpoint is None or nearest_choice(self.checkpoint, token_ids) > HAIR:
                raise

    def pick(self, data):
        return data.draw(st.sampled_from(self.sessions))

    @precondition(lambda self: len(self.sessions) < MAX_SESSIONS)
    @rule()
    def open(self):
        self.sessions.append(self.rig.session())

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), pieces=st.lists(st.sampled_from(PIECES), min_size=1, max_size=4), cut=LENGTHS)
    def prefill_anything(self, data, pieces, cut):
        session, prompt = self.pick(data), [token_id for piece in pieces for token_id in piece][-self.longest :]
        prompt = prompt[:cut] if cut % 2 else prompt
        in_memory, extends = self.rig.cache.explain(prompt).cached_tokens, prompt[: len(session.token_ids)]
        own = len(extends) if extends == session.token_ids and len(extends) < len(prompt) else 0
        reused = session.prefill(prompt)
        assert max(in_memory, own) <= reused <= len(prompt)
        self.check(session, prompt)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def ask_for_too_much(self, data):
        session = self.pick(data)
        before = session.token_ids
        with pytest.raises(ContextLengthError):
            session.prefill(tokens(0, 641))
        assert session.token_ids == before

    @precondition(lambda self: any(session.token_ids for session in self.sessions))
    @rule(data=st.data(), keep=st.floats(0, 1), length=LENGTHS)
    def prefill_from_another(self, data, keep, length):
        """A prompt that starts as some session does: longer, shorter, or parting from it."""
        known = self.pick(data).token_ids
        prompt = (known[: round(keep * len(known))] + tokens(length, length))[: self.longest]
        session = self.pick(data)
        session.prefill(prompt)
        self.check(session, prompt)

    @precondition(lambda self: any(session.token_ids for session in self.sessions))
    @rule(data=st.data(), token_ids=st.lists(st.integers(0, 511), min_size=1, max_size=4))
    def decode(self, data, token_ids):
        session = data.draw(st.sampled_from([s for s in self.sessions if s.token_ids]))
        before = session.token_ids
        for token_id in token_ids:
            session.decode(token_id)
        self.check(session, [*before, *token_ids])

    @precondition(lambda self: sum(bool(session.token_ids) for session in self.sessions) > 1)
    @rule(first=st.integers(0, 99), steps=st.integers(1, 3))
    def decode_all(self, first, steps):
        """In turns and each its own tokens: whoever writes into memory of another is found out."""
        sessions = [session for session in self.sessions if session.token_ids]
        expected = [session.token_ids for session in sessions]
        for step in range(steps):
            for n, session in enumerate(sessions):
                expected[n].append(first + 100 * n + step)
                session.decode(expected[n][-1])
        for session, token_ids in zip(sessions, expected, strict=True):
            self.check(session, token_ids)

    @precondition(lambda self: sum(bool(session.token_ids) for session in self.sessions) > 1)
    @rule(first=st.integers(0, 99))
    def decode_rows_of_one_step(self, first):
        sessions = [session for session in self.sessions if session.token_ids]
        expected = [[*session.token_ids, first + n] for n, session in enumerate(sessions)]
        with locked(sessions):
            decode_sessions(sessions, [token_ids[-1] for token_ids in expected])
        for session, token_ids in zip(sessions, expected, strict=True):
            self.check(session, token_ids)

    @precondition(lambda self: len(self.sessions) < MAX_SESSIONS and self.sessions)
    @rule(data=st.data())
    def fork(self, data):
        session = self.pick(data)
        branch = session.fork()
        assert branch.token_ids == session.token_ids
        if session._has_logits:
            np.testing.assert_array_equal(branch.logits, session.logits)
        self.sessions.append(branch)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), part=st.floats(0, 1))
    def truncate(self, data, part):
        session = self.pick(data)
        before = session.token_ids
        wanted = round(part * len(before))
        kept = session.truncate(wanted)
        assert kept <= wanted and session.token_ids == before[:kept]
        session.prefill(before[: max(wanted, 1)] or [1])
        self.check(session, before[: max(wanted, 1)] or [1])

    @precondition(lambda self: len(self.sessions) < MAX_SESSIONS and any(s.token_ids for s in self.sessions))
    @rule(data=st.data(), token_id=st.integers(0, 511))
    def save_and_load(self, data, token_id):
        session = data.draw(st.sampled_from([s for s in self.sessions if s.token_ids]))
        path = self.folder / "session.lily"
        session.save(path)
        damaged = damage(path.read_bytes(), random.Random(token_id))
        path.with_suffix(".damaged").write_bytes(damaged)
        with pytest.raises(SnapshotError):
            StateFile.read(path.with_suffix(".damaged"), FINGERPRINTS)
        loaded = self.rig.session()
        loaded._load(StateFile.read(path, FINGERPRINTS))
        loaded.decode(token_id)
        self.sessions.append(loaded)
        self.check(loaded, [*session.token_ids, token_id])

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), seed=st.integers(0, 3))
    def cancel_between_chunks(self, data, seed):
        """Cancel a prefill at its first chunk, then try again."""
        session, prompt = self.pick(data), self.long_prompt(seed)

        def progress(done, total):
            raise Stop

        session._progress = progress
        try:
            session.prefill(prompt)  # may have been there already
        except Stop:
            pass
        finally:
            session._progress = False
        session.prefill(prompt)
        self.check(session, prompt)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), seed=st.integers(0, 3), at=st.integers(0, 2))
    def cancel_inside_a_chunk(self, data, seed, at):
        """What the chunk had computed is lost, the chunks before it are not."""
        session, prompt = self.pick(data), self.long_prompt(seed)
        done = []

        def before_prefill(timeline, cancel):
            if len(done) == at:
                cancel.set()
            done.append(timeline.num_tokens)

        self.rig.runtime.before_prefill = before_prefill
        try:
            session.prefill(prompt)
        except CancelledError:
            assert session.token_ids == prompt[: done[at]]
            # Unless snapshots that are pinned leave no room to keep it.
            cached = self.rig.cache.explain(prompt).cached_tokens
            assert cached == done[at] or (self.has_pinned and cached < done[at]), "the retry resumes here"
        finally:
            self.rig.runtime.before_prefill = None
        session.prefill(prompt)
        self.check(session, prompt)

    def long_prompt(self, seed):
        return [*tokens(seed, 20), BORDER, *tokens(seed + 9, self.longest - 40), BORDER, *tokens(seed, 9)]

    @precondition(lambda self: self.fails and self.sessions)
    @rule(data=st.data(), token_id=st.integers(0, 511), length=LENGTHS)
    def fail(self, data, token_id, length):
        """The device fails; what the sessions and the cache hold is as it was."""
        session, prompt = self.pick(data), tokens(length + 50, min(length, self.longest))
        before = session.token_ids
        control.configure(fail_code=GPU_TIMEOUT)
        try:
            if before:
                with pytest.raises(DeviceError):
                    session.decode(token_id)
            if self.rig.cache.explain(prompt).common_tokens < len(prompt):
                with pytest.raises(DeviceError):
                    session.prefill(prompt)
        finally:
            control.configure()
        session.prefill([*before, token_id])
        self.check(session, [*before, token_id])

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def close(self, data):
        session = self.pick(data)
        self.sessions.remove(session)
        session.close()

    @rule(data=st.data(), many=st.booleans())
    def evict(self, data, many):
        def some():
            for _ in range(3 if many else 1):
                if victim := self.rig.cache._victim(for_request=True):
                    self.rig.cache._evict(victim)

        self.rig.owner.call(some)

    @rule()
    def leave_it_to_the_disk(self):
        self.rig.disk.flush()
        self.rig.cache.clear()

    @precondition(lambda self: self.files())
    @rule(data=st.data(), seed=st.integers(0, 99))
    def damage_a_file(self, data, seed):
        path = data.draw(st.sampled_from(self.files()))
        path.with_suffix(".new").write_bytes(damage(path.read_bytes(), random.Random(seed)))
        os.replace(path.with_suffix(".new"), path)

    @precondition(lambda self: any(session.token_ids for session in self.sessions))
    @rule(data=st.data(), pins=st.booleans())
    def pin(self, data, pins):
        token_ids = self.pick(data).token_ids or [1]
        (self.rig.cache.pin if pins else self.rig.cache.unpin)(token_ids)
        self.has_pinned |= pins

    @invariant()
    def accounts_balance(self):
        self.rig.disk.flush()  # or the next rule would find what the last one left by chance
        self.rig.owner.call(lambda: None)  # closing of sessions is posted
        use = self.use()
        assert use["snapshot_bytes"] <= use["snapshot_limit_bytes"]
        assert use["kept_slots"] <= use["max_kept_slots"] and use["reclaimable_pages"] <= use["kept_pages"]
        assert use["snapshot_bytes"] == use["kept_slots"] * use["slot_bytes"] + use["kept_pages"] * use["page_bytes"]
        assert use["kept_slots"] <= self.rig.cache.stats().num_snapshots
        nodes = list(self.rig.cache._trie.nodes())
        assert {node.value for node in nodes if node.value} == self.rig.cache._entries
        assert all(node.value or len(node.children) > 1 for node in nodes), "the trie forgets what leads nowhere"

    def teardown(self):
        for session in self.sessions:
            session.close()
        self.forget_everything()
        self.rig.owner.call(lambda: None)
        assert self.use() == self.idle, "everything was given back"


def damage(content, rng):
    """A flipped bit, the end cut off, zeros, or something behind the end."""
    place, kind = rng.randrange(len(content)), rng.randrange(4)
    flipped = bytes([content[place] ^ 1 << rng.randrange(8)])
    return [
        content[:place] + flipped + content[place + 1 :],
        content[:place],
        content[:place] + bytes([content[place] ^ 255]) + bytes(len(content) - place - 1),
        content + content[place:],
    ][kind]


def run_machine(rig, reference, folder, *, max_examples, steps, **attributes):
    scale = settings().max_examples // settings.get_profile("default").max_examples  # 1, or more under `make soak`
    options = settings(
        max_examples=max_examples * scale,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    machine = type("Machine", (SessionMachine,), {"rig": rig, "reference": reference, "folder": folder, **attributes})
    try:
        run_state_machine_as_test(machine, settings=options)
    finally:
        del machine.rig, machine.reference  # hypothesis keeps the class
        rig.disk.close()


def make_rigs(checkpoint, folder, **options):
    """One with room for 4 full sessions and few snapshots, so that eviction is part of the mix; one to compare with."""
    disk = DiskCache(folder / "cache", FINGERPRINTS, limit_bytes=4 << 20)
    room = {"max_context": 640, "memory_limit": 22 << 20, "prefix_cache_bytes": 3 << 20}
    return (
        Rig(checkpoint, disk=disk, traced=True, **options, **room),
        Rig(checkpoint, max_context=640, prefix_cache_bytes=0, **options),
    )


@pytest.mark.parametrize(
    ("family", "debug", "max_examples", "steps"),
    [(FAMILIES[0], "shuffled", 12, 25), (FAMILIES[1], "shuffled", 6, 25), (FAMILIES[0], "checked,shuffled", 1, 8)],
)
def test_any_mix_gives_the_logits_of_a_fresh_run(checkpoint, tmp_path, family, debug, max_examples, steps):
    rig, reference = make_rigs(checkpoint(family), tmp_path, debug=debug)
    with rig, reference:
        run_machine(rig, reference, tmp_path, max_examples=max_examples, steps=steps)


@pytest.mark.parametrize("family", FAMILIES)
def test_any_mix_on_the_metal_device(checkpoint, tmp_path, family):
    try:
        _core.Device("metal", sizes=NANO)
    except DeviceError as error:
        pytest.skip(str(error))
    rig, reference = make_rigs(checkpoint(family), tmp_path, device="metal", dtype="float16")
    with rig, reference:
        run_machine(
            rig,
            reference,
            tmp_path,
            max_examples=6,
            steps=15,
            gate={"ratio": 0.004, "divergence": 5e-4, "gap": 0.1},
            longest=140,
            checkpoint=checkpoint(family),
            fails=control.is_present(),
        )
