from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lily import CancelledError, EngineClosedError
from lily.owner import Owner, Request, Steps
from tests.gated import PATIENCE


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner("test-owner")
    yield owner
    owner.close()
    assert not owner._thread.is_alive()


def counting(n: int, log: list[str], name: str) -> Callable[[Request[int, str]], Steps[int, str]]:
    def job(request: Request[int, str]) -> Steps[int, str]:
        try:
            for i in range(n):
                log.append(f"{name}{i}")
                yield i
            return name
        finally:
            log.append(f"{name} end")

    return job


def endless(ended: threading.Event) -> Callable[[Request[int, None]], Steps[int, None]]:
    def job(request: Request[int, None]) -> Steps[int, None]:
        try:
            while True:
                time.sleep(0.001)
                yield 1
        finally:
            ended.set()

    return job


def test_items_result_and_errors(owner: Owner) -> None:
    request = owner.submit(counting(3, [], "a"))
    assert list(request) == [0, 1, 2] and request.result() == "a"
    assert owner.call(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        owner.call(lambda: 1 // 0)
    assert owner.call(threading.current_thread).name == "test-owner"


def test_a_request_knows_whether_others_wait(owner: Owner) -> None:
    seen: list[bool] = []
    first_step, second_request = threading.Event(), threading.Event()

    def job(request: Request[int, None]) -> Steps[int, None]:
        for step in range(3):
            seen.append(request.is_alone)
            first_step.set()
            second_request.wait()
            yield step

    request = owner.submit(job)
    first_step.wait()
    other = owner.submit(endless(threading.Event()))
    second_request.set()
    request.result()
    other.cancel()
    assert seen == [True, False, False]


def test_jobs_take_turns(owner: Owner) -> None:
    log: list[str] = []
    gate = threading.Event()
    owner.post(lambda: gate.wait(PATIENCE) and None)
    requests = [owner.submit(counting(3, log, name)) for name in "ab"]
    gate.set()
    assert [list(request) for request in requests] == [[0, 1, 2]] * 2
    assert log[:6] == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_cancelling_ends_the_job_and_its_clean_up_runs(owner: Owner) -> None:
    ended = threading.Event()
    request = owner.submit(endless(ended))
    assert next(request) == 1
    request.cancel()
    with pytest.raises(CancelledError):
        request.result()
    assert ended.wait(PATIENCE)
    assert owner.call(lambda: "alive") == "alive"


def test_many_threads(owner: Owner) -> None:
    results: list[list[int]] = []

    def work(n: int) -> None:
        for _ in range(20):
            results.append(list(owner.submit(counting(n, [], "t"))))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(map(len, results)) == sorted(n for n in range(8) for _ in range(20))


def test_close_during_calls_wakes_every_waiter() -> None:
    owner = Owner("closing")
    began, ended = ([threading.Event() for _ in range(4)] for _ in range(2))
    errors: list[BaseException] = []

    def wait(begin: threading.Event, end: threading.Event) -> None:
        try:
            request = owner.submit(endless(end))
            next(request)
            begin.set()
            request.result()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=wait, args=events) for events in zip(began, ended, strict=True)]
    for thread in threads:
        thread.start()
    assert all(event.wait(PATIENCE) for event in began)
    released = []
    owner.at_exit(lambda: released.append(threading.current_thread().name))
    owner.close()
    owner.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert [type(error) for error in errors] == [EngineClosedError] * 4
    assert all(event.is_set() for event in ended)
    assert released == ["closing"] and not owner._thread.is_alive()
    with pytest.raises(EngineClosedError):
        owner.call(lambda: None)


def test_submitting_while_closing_never_hangs() -> None:
    for _ in range(50):
        owner = Owner("race")
        outcomes: list[object] = []

        def work(owner: Owner = owner, outcomes: list[object] = outcomes) -> None:
            try:
                while True:
                    outcomes.append(owner.call(lambda: 1))
            except EngineClosedError:
                outcomes.append("closed")

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        owner.close()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert outcomes.count("closed") == 3


class Awaited:
    """A request's queue, and Ctrl-C as soon as somebody waits for it."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def get(self) -> Any:
        threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        return self._queue.get()

    def put(self, item: Any) -> None:
        self._queue.put(item)


def test_interrupt_cancels_and_is_raised_again(owner: Owner) -> None:
    ended = threading.Event()

    def silent(request: Request[int, None]) -> Steps[int, None]:
        try:
            while True:
                time.sleep(0.001)
                yield None
        finally:
            ended.set()

    request = owner.submit(silent)
    request._queue = Awaited(request._queue)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        next(request)
    assert ended.wait(PATIENCE)


def test_the_owner_thread_cannot_wait_for_itself(owner: Owner) -> None:
    with pytest.raises(RuntimeError, match="own thread"):
        owner.call(lambda: owner.call(lambda: 1))


def test_closing_from_the_owner_thread() -> None:
    owner = Owner("self")
    owner.post(owner.close)
    owner._thread.join(PATIENCE)
    assert not owner._thread.is_alive()


def test_the_thread_keeps_neither_results_nor_errors_alive(owner: Owner) -> None:
    class Big:
        pass

    def fail() -> None:
        big = Big()
        seen.append(weakref.ref(big))
        raise ValueError(big)

    seen: list[weakref.ref[Big]] = []
    seen.append(weakref.ref(owner.call(Big)))
    with pytest.raises(ValueError):
        owner.call(fail)
    owner.call(lambda: None)
    gc.collect()
    assert [ref() for ref in seen] == [None, None]


def _use_in_child(owner: Owner, connection: multiprocessing.connection.Connection) -> None:
    try:
        owner.call(lambda: 1)
    except EngineClosedError as error:
        connection.send(str(error))
    owner.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_a_clear_error(owner: Owner) -> None:
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_use_in_child, args=(owner, there))
    child.start()
    assert here.poll(PATIENCE) and f"lives in process {os.getpid()}" in here.recv()
    child.join(PATIENCE)
    assert child.exitcode == 0 and owner.call(lambda: 2) == 2
