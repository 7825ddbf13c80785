from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from lily import ContextLengthError, Engine, EngineClosedError, MemoryLimitError

PROMPT = "Answer briefly. What is a compiler?"


def greedy(engine: Engine, ids: list[int], n: int) -> list[int]:
    with engine.session() as session:
        session.prefill(ids)
        for _ in range(n):
            session.decode(int(session.logits.argmax()))
        return session.token_ids[len(ids) :]


def test_a_loop_by_hand_equals_generate(engine: Engine) -> None:
    ids = engine.tokenize(PROMPT)
    done = engine.generate(ids, temperature=0, max_tokens=12, ignore_eos=True)
    assert tuple(greedy(engine, ids, 12)) == done.token_ids


def test_prefill_reuses_what_it_extends(engine: Engine) -> None:
    ids = engine.tokenize(PROMPT)
    engine.prefix_cache.clear()
    with engine.session() as session:
        assert session.prefill(ids[:5]) == 0
        assert session.prefill(ids) == 5
        extended = session.logits.copy()
        assert session.prefill(ids) == len(ids)
        np.testing.assert_array_equal(session.logits, extended)
        assert session.prefill(ids[:-1]) == 4 and session.token_ids == ids[:-1]
        session.decode(ids[-1])
        assert session.token_ids == ids and session.num_computed_tokens == len(ids)
        np.testing.assert_allclose(session.logits, extended, atol=2e-2 * np.abs(extended).max())
        assert session.prefill([*ids[:3], 7]) == 0
    with engine.prefill(ids) as fresh:
        np.testing.assert_allclose(fresh.logits, extended, atol=2e-2 * np.abs(extended).max())


def test_logits_are_a_read_only_view(engine: Engine) -> None:
    with engine.prefill([1, 2, 3]) as session:
        logits = session.logits
        assert logits.shape == (4096,) and logits.dtype == np.float32 and np.isfinite(logits).all()
        assert not logits.flags.writeable and not logits.flags.owndata
        with pytest.raises(ValueError):
            logits[0] = 0


def test_a_view_outlives_its_session(engine: Engine) -> None:
    """The row of logits is given to another session only when nobody looks at it any more."""
    with engine.prefill([1, 2, 3]) as session:
        view = session.logits
    kept = view.copy()
    for token_id in range(40):
        with engine.prefill([7, token_id]):
            np.testing.assert_array_equal(view, kept)
    del view
    sessions = [engine.session() for _ in range(engine_timelines(engine))]  # the row is free again
    for session in sessions:
        session.close()


def engine_timelines(engine: Engine) -> int:
    """How many sessions there can be at once."""
    sessions = []
    try:
        while True:
            sessions.append(engine.session())
    except MemoryLimitError:
        return len(sessions)
    finally:
        for session in sessions:
            session.close()


@pytest.mark.parametrize("debug", ["checked", "checked,shuffled"])
def test_logits_are_read_while_another_session_runs(monkeypatch: pytest.MonkeyPatch, debug: str) -> None:
    monkeypatch.setenv("LILY_CPU_DEBUG", debug)
    with Engine("lily-nano", max_context=256, memory_limit="1GiB", progress=False) as engine:
        view = engine.prefill([1, 2, 3]).logits
        kept = view.copy()
        other = threading.Thread(target=lambda: engine.generate([4, 5, 6], max_tokens=8, ignore_eos=True))
        other.start()
        while other.is_alive():
            np.testing.assert_array_equal(view, kept)
        other.join()


def test_decode_of_several_sessions(engine: Engine) -> None:
    prompts = [engine.tokenize(text) for text in ("The first", "A second one")]
    sessions = [engine.prefill(ids) for ids in prompts]
    logits = engine.decode(sessions, [11, 12])
    assert logits.shape == (2, 4096) and logits.dtype == np.float32
    for row, session, ids, token_id in zip(logits, sessions, prompts, [11, 12], strict=True):
        assert session.token_ids == [*ids, token_id]
        np.testing.assert_array_equal(row, session.logits)
        with engine.prefill(ids) as alone:
            alone.decode(token_id)
            np.testing.assert_allclose(alone.logits, row, atol=1e-3 * np.abs(row).max())
    with pytest.raises(ValueError, match="same session twice"):
        engine.decode([sessions[0], sessions[0]], [1, 2])
    with pytest.raises(ValueError, match="2 sessions, 1 ids"):
        engine.decode(sessions, [1])
    with (
        Engine("lily-nano", max_context=256, progress=False) as other,
        pytest.raises(ValueError, match="another engine"),
    ):
        other.decode(sessions, [1, 2])
    for session in sessions:
        session.close()


def test_bad_ids_and_lengths(engine: Engine) -> None:
    with engine.session() as session:
        with pytest.raises(ValueError, match="no logits yet"):
            _ = session.logits
        with pytest.raises(ValueError, match=r"4096 at place 1 .* 4095"):
            session.prefill([1, 4096])
        with pytest.raises(ValueError, match="outside"):
            session.decode(-1)
        with pytest.raises(ValueError, match="at least one"):
            session.prefill([])
        with pytest.raises(ContextLengthError, match="holds 1024"):
            session.prefill([1] * 1025)
        assert session.num_computed_tokens == 0
        session.prefill([1] * 1024)
        with pytest.raises(ContextLengthError, match="prompt of 1024 tokens and a completion of 1"):
            session.decode(1)
        assert session.num_computed_tokens == 1024 and "1024 of 1024" in repr(session)


def test_a_closed_session(engine: Engine) -> None:
    session = engine.prefill([1])
    session.close()
    session.close()
    for call in (lambda: session.prefill([1]), lambda: session.decode(1), lambda: session.logits):
        with pytest.raises(EngineClosedError, match="session is closed"):
            call()
    assert session.token_ids == [1] and "closed" in repr(session)


def test_one_session_from_many_threads(engine: Engine) -> None:
    with engine.prefill([1, 2]) as session:
        threads = [threading.Thread(target=session.decode, args=(5,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert session.token_ids == [1, 2] + [5] * 8


def test_sessions_do_not_disturb_each_other(engine: Engine) -> None:
    ids = engine.tokenize(PROMPT)
    expected = greedy(engine, ids, 6)
    sessions = [engine.prefill(ids) for _ in range(3)]
    for _ in range(6):
        for session in sessions:
            session.decode(int(session.logits.argmax()))
    assert [session.token_ids[len(ids) :] for session in sessions] == [expected] * 3
    for session in sessions:
        session.close()


def test_what_an_interrupted_prefill_computed_stays() -> None:
    interrupts = [KeyboardInterrupt()]

    def progress(done: int, total: int) -> None:
        if (done, total) == (1024, 1800) and interrupts:
            raise interrupts.pop()

    ids = [n % 4000 for n in range(1801)]
    with Engine("lily-nano", max_context=2048, progress=progress) as engine, engine.session() as session:
        with pytest.raises(KeyboardInterrupt):
            session.prefill(ids[:1800])
        # The second chunk may have been running already; it counts then, or is lost as a whole.
        assert session.prefill(ids) in (1024, 1799, 1800) and session.token_ids == ids
        with engine.prefill(ids) as fresh:
            np.testing.assert_allclose(session.logits, fresh.logits, atol=1e-3 * np.abs(fresh.logits).max())


def test_bad_arguments_are_named(engine: Engine, tmp_path: Path) -> None:
    with engine.prefill([1, 2, 3]) as session:
        for wrong in (1.5, "1", None):
            with pytest.raises(TypeError, match="num_tokens must be an int, not"):
                session.truncate(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"decode takes sessions, not \['Session', 'NoneType'\]"):
            engine.decode([session, None], [1, 2])  # type: ignore[list-item]
        for folder in (tmp_path, ""):
            with pytest.raises(IsADirectoryError, match="saved to a file, but this is a folder"):
                session.save(folder)
        with pytest.raises(FileNotFoundError, match="no such folder to save a session to"):
            session.save(tmp_path / "none" / "session.lily")
        assert session.token_ids == [1, 2, 3] and not list(tmp_path.iterdir())
