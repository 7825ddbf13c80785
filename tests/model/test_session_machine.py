"""Any mix of prefill, decode, fork, truncate, save, load, eviction and cancellation gives the logits of a fresh run."""

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
from lily.errors import DeviceError
from lily.state_file import StateFile
from tests.kernels.harness import NANO
from tests.model.rig import BORDER, FINGERPRINTS, Rig, tokens
from tests.model.support import FAMILIES, check_gate, prefill

MAX_SESSIONS = 4
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

    def __init__(self):
        super().__init__()
        self.sessions = []

    @initialize()
    def start(self):
        self.rig.cache.clear()
        self.idle = self.use()

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
        check_gate(session.logits, self.expected(token_ids), **self.gate)

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
        assert 0 <= session.prefill(prompt) <= len(prompt)
        self.check(session, prompt)

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
        loaded = self.rig.session()
        loaded._load(StateFile.read(path, FINGERPRINTS))
        loaded.decode(token_id)
        self.sessions.append(loaded)
        self.check(loaded, [*session.token_ids, token_id])

    @precondition(lambda self: self.sessions and self.longest > 512)
    @rule(data=st.data(), seed=st.integers(0, 3))
    def cancel(self, data, seed):
        """Cancel a prefill at its first chunk, then try again."""
        session, prompt = self.pick(data), [*tokens(seed, 20), BORDER, *tokens(seed + 9, 560)]

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

    @precondition(lambda self: any(session.token_ids for session in self.sessions))
    @rule(data=st.data(), pins=st.booleans())
    def pin(self, data, pins):
        token_ids = self.pick(data).token_ids or [1]
        (self.rig.cache.pin if pins else self.rig.cache.unpin)(token_ids)

    @invariant()
    def accounts_balance(self):
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
        self.rig.cache.clear()
        self.rig.owner.call(lambda: None)
        assert self.use() == self.idle, "everything was given back"


def run_machine(rig, reference, folder, *, max_examples, steps, derandomize=False, **attributes):
    scale = settings().max_examples // settings.get_profile("default").max_examples  # 1, or more under `make soak`
    options = settings(
        max_examples=max_examples * scale,
        stateful_step_count=steps,
        derandomize=derandomize,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    machine = type("Machine", (SessionMachine,), {"rig": rig, "reference": reference, "folder": folder, **attributes})
    try:
        run_state_machine_as_test(machine, settings=options)
    finally:
        del machine.rig, machine.reference  # hypothesis keeps the class


# Room for 4 full sessions and few snapshots, so that eviction is part of the mix.
ROOM = {"max_context": 640, "memory_limit": 22 << 20, "prefix_cache_bytes": 3 << 20}


@pytest.mark.parametrize(
    ("family", "debug", "max_examples", "steps"),
    [(FAMILIES[0], "", 12, 25), (FAMILIES[1], "", 6, 25), (FAMILIES[0], "checked,shuffled", 1, 8)],
)
def test_any_mix_gives_the_logits_of_a_fresh_run(checkpoint, tmp_path, family, debug, max_examples, steps):
    folder = checkpoint(family)
    with (
        Rig(folder, debug=debug, threads=1, **ROOM) as rig,
        Rig(folder, max_context=640, prefix_cache_bytes=0, threads=1) as reference,
    ):
        run_machine(rig, reference, tmp_path, max_examples=max_examples, steps=steps)


@pytest.mark.parametrize("family", FAMILIES)
def test_any_mix_on_the_metal_device(checkpoint, tmp_path, family):
    try:
        _core.Device("metal", sizes=NANO)
    except DeviceError as error:
        pytest.skip(str(error))
    folder, options = checkpoint(family), {"device": "metal", "dtype": "float16"}
    with (
        Rig(folder, **options, **ROOM) as rig,
        Rig(folder, max_context=640, prefix_cache_bytes=0, **options) as reference,
    ):
        # Wider than half mode's gates: another order of sums may choose another expert where two are near.
        gate = {"ratio": 0.02, "divergence": 2e-3, "gap": 0.2}
        run_machine(rig, reference, tmp_path, max_examples=6, steps=15, derandomize=True, gate=gate, longest=70)
