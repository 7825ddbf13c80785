"""Sessions, streams and the prefix cache used by threads and tasks at once: right results or named errors, no leak."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lily import CancelledError, Engine, EngineClosedError, LilyError, Session, SnapshotError

STEM = [n * 37 % 4000 for n in range(90)]


def ending(n: int) -> list[int]:
    return [*STEM, *((n * 101 + k * 17) % 4000 for k in range(12))]


@pytest.fixture
def engine() -> Iterator[Engine]:
    """With a cache that holds a few snapshots only, so that all the time some of them leave."""
    with Engine(
        "lily-nano", dtype="float32", max_context=512, memory_limit="512MiB", prefix_cache_bytes="16MiB", progress=False
    ) as engine:
        yield engine


def in_threads(work: Callable[[int], None], count: int = 6) -> None:
    """Run `work` in threads; raises the first of what they raise."""
    errors: list[BaseException] = []

    def run(n: int) -> None:
        try:
            work(n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]


def everything_comes_back(engine: Engine) -> None:
    engine.prefix_cache.clear()
    use = engine.runtime.state_use
    assert use["kept_slots"] == use["kept_pages"] == use["snapshot_bytes"] == 0
    sessions = [engine.session() for _ in range(engine.runtime.max_timelines)]
    for session in sessions:
        session.close()
    prompt = engine.prefill(STEM[:10])
    prompt.close()
    engine.prefix_cache.clear()
    assert engine.runtime.state_use["free_pages"] == use["free_pages"]


def test_forks_of_one_trunk_go_their_own_ways(engine: Engine) -> None:
    expected = []
    for n in range(6):
        with engine.prefill(STEM) as alone:
            for token_id in ending(n)[90:94]:
                alone.decode(token_id)
            expected.append(alone.logits.copy())
    trunk = engine.prefill(STEM)

    def work(n: int) -> None:
        for _ in range(4):
            with trunk.fork() as branch:
                for token_id in ending(n)[90:94]:
                    branch.decode(token_id)
                assert branch.token_ids == ending(n)[:94]
                np.testing.assert_allclose(branch.logits, expected[n], atol=1e-4 * np.abs(expected[n]).max())
                engine.prefix_cache.stats()
                assert branch.truncate(91) <= 91

    in_threads(work)
    assert trunk.token_ids == STEM
    trunk.close()
    everything_comes_back(engine)


def test_a_session_that_others_close_while_it_works(engine: Engine) -> None:
    """Whoever comes too late gets an error that says so; nobody gets somebody else's tokens."""
    shared: list[Session] = [engine.session()]

    def work(n: int) -> None:
        rng = random.Random(n)
        for step in range(12):
            session = shared[0]
            try:
                kind = rng.randrange(5)
                if kind == 0:
                    shared[0] = engine.session()
                    session.close()
                elif kind == 1:
                    session.prefill(ending(n))
                elif kind == 2:
                    session.fork().close()
                elif kind == 3:
                    session.truncate(rng.randrange(100))
                else:
                    session.decode(step)
            except EngineClosedError as error:
                assert "session is closed" in str(error)

    in_threads(work)
    shared[0].close()
    assert engine.generate(ending(0), max_tokens=2, ignore_eos=True).usage.completion_tokens == 2
    everything_comes_back(engine)


def test_saving_while_others_compute(engine: Engine, tmp_path: Path) -> None:
    session = engine.prefill(STEM)

    def work(n: int) -> None:
        path = tmp_path / f"{n % 2}.lily"  # three write each file at once: it is one of theirs, whole
        for step in range(4):
            if n == 5:
                session.decode(step)
            else:
                session.save(path)
                with engine.load_session(path) as loaded:
                    assert loaded.token_ids[:90] == STEM

    in_threads(work)
    session.close()
    assert not list(tmp_path.glob("*.partial"))
    everything_comes_back(engine)


def test_tasks_that_are_cancelled_while_others_go_on(engine: Engine) -> None:
    expected = [engine.generate(ending(n), max_tokens=5, temperature=0, ignore_eos=True).token_ids for n in range(8)]
    engine.prefix_cache.clear()

    async def one(n: int) -> tuple[int, ...]:
        done = await engine.agenerate(ending(n), max_tokens=5, temperature=0, ignore_eos=True)
        return done.token_ids

    async def main() -> None:
        rng = random.Random(3)
        for _ in range(3):
            kept = {n: asyncio.create_task(one(n)) for n in range(0, 8, 2)}
            lost = [asyncio.create_task(one(n)) for n in range(1, 8, 2)]
            for task in lost:
                await asyncio.sleep(rng.random() / 100)
                task.cancel()
            for n, task in kept.items():
                assert await task == expected[n]
            for outcome in await asyncio.gather(*lost, return_exceptions=True):
                assert isinstance(outcome, (tuple, asyncio.CancelledError, CancelledError))

    asyncio.run(main())
    everything_comes_back(engine)


def test_an_engine_that_closes_under_all_of_it(tmp_path: Path) -> None:
    engine = Engine(
        "lily-nano", max_context=2048, memory_limit="512MiB", prefix_cache_bytes="16MiB", cache_dir=tmp_path,
        progress=False,
    )  # fmt: skip
    session, working = engine.prefill(STEM), threading.Barrier(7, timeout=300)

    def work(n: int) -> None:
        calls: list[Callable[[], object]] = [
            lambda: engine.prefill([*ending(n), *[5] * 1500]).close(),
            lambda: session.decode(n),
            lambda: session.fork().close(),
            lambda: session.save(tmp_path / "session.lily"),
            lambda: engine.load_session(tmp_path / "session.lily").close(),
            lambda: engine.prefix_cache.clear(),
        ]
        working.wait()
        with pytest.raises(EngineClosedError):
            while True:
                try:
                    calls[n]()
                except SnapshotError as error:
                    assert "No such file" in str(error), "the file is there and whole, or not there"
                except EngineClosedError:
                    raise
                except LilyError as error:
                    assert "context" in str(error), "the session has run full"
                    session.truncate(0)

    closing = threading.Thread(target=lambda: (working.wait(), threading.Event().wait(0.5), engine.close()))
    closing.start()
    in_threads(work)
    closing.join(300)
    session.close()
    with Engine("lily-nano", max_context=2048, cache_dir=tmp_path, progress=False) as again:
        assert again.generate(ending(0), max_tokens=1).usage.prompt_tokens == 102
