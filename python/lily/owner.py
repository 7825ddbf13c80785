"""The owner thread: the only thread that talks to the device. Everybody else submits work and waits on a queue."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar, cast

from . import _core
from .errors import CancelledError, EngineClosedError

Item = TypeVar("Item")
Result = TypeVar("Result")

# A job runs on the owner thread. Each `next` is one step (a prefill chunk, a token); what it yields, unless None, goes
# to the waiting caller. Other jobs run between its steps. It is cancelled by a CancelledError thrown in at a yield.
Steps = Generator[Item | None, None, Result]
Job = Callable[["Request[Item, Result]"], Steps[Item, Result]]


@dataclass(frozen=True, slots=True)
class _Done(Generic[Result]):
    result: Result


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


class Request(Generic[Item, Result]):
    """One job and the queue on which its caller waits: iterating gives what it yields, `result` what it returns.

    on_item: called on the owner thread whenever `poll` has something new, for callers that cannot wait.
    """

    def __init__(self, job: Job[Item, Result], on_item: Callable[[], None] | None = None) -> None:
        # The flag is read by the device inside a long step, so that a cancelled prefill ends at the next opportunity.
        self.cancel_flag = _core.CancelFlag()
        self.is_alone = True  # during a step: whether no other request waits for its turn
        self._queue: SimpleQueue[Item | _Done[Result] | _Failed] = SimpleQueue()
        self._on_item = on_item
        self._steps = job(self)
        self._finished = False
        self._result: Result | None = None
        self._engine_closed = False

    def push(self, item: Item) -> None:
        """Send an item from inside a step, where the job cannot yield (a callback of the device)."""
        self._put(item)

    def cancel(self) -> None:
        """End the job at its next step. A caller that waits for it gets CancelledError."""
        self.cancel_flag.set()

    def __iter__(self) -> Request[Item, Result]:
        return self

    def __next__(self) -> Item:
        if self._finished:
            raise StopIteration
        try:
            item = self._queue.get()
        except BaseException:  # Ctrl-C while waiting
            self.cancel()
            raise
        return self._read(item)

    def poll(self) -> Item | None:
        """As next, but None instead of waiting."""
        if self._finished:
            raise StopIteration
        try:
            item = self._queue.get_nowait()
        except Empty:
            return None
        return self._read(item)

    def _read(self, item: Item | _Done[Result] | _Failed) -> Item:
        if isinstance(item, (_Done, _Failed)):
            self._queue.put(item)  # for another thread that may wait for the same end
        if isinstance(item, _Done):
            self._finished = True
            self._result = item.result
            raise StopIteration
        if isinstance(item, _Failed):
            self._finished = True
            try:
                raise item.error
            finally:
                del item  # or its traceback, which holds this frame, would keep everything alive
        return item

    def result(self) -> Result:
        """Wait for the end of the job, dropping what it yields. Raises what the job raised. Call once."""
        for _ in self:
            pass
        return cast(Result, self._result)

    def _put(self, item: Item | _Done[Result] | _Failed) -> None:
        self._queue.put(item)
        if self._on_item is not None:
            try:
                self._on_item()
            except RuntimeError:  # the caller's event loop is closed: nobody waits any more
                self._on_item = None
                self.cancel()

    def _step(self) -> bool:
        """Run one step on the owner thread; False after the last."""
        try:
            if self.cancel_flag.is_set():
                item = self._steps.throw(CancelledError("the request was cancelled"))
            else:
                item = next(self._steps)
        except StopIteration as stop:
            self._put(_Done(stop.value))
            return False
        except BaseException as error:
            closed = self._engine_closed and isinstance(error, CancelledError)
            self._put(_Failed(_closed_during_call() if closed else error))
            return False
        if item is not None:
            self._put(item)
        return True

    def _end(self, error: EngineClosedError) -> None:
        """Give up the job; its own clean-up runs."""
        try:
            self._steps.throw(error)
        except BaseException as raised:
            self._put(_Failed(raised))
        else:
            self._put(_Failed(error))


class Owner:
    """A thread that steps all active jobs in turn, so that streams and long prefills interleave.

    It holds no reference to its engine: an engine that nobody uses is collected, and its finaliser closes this.
    """

    def __init__(self, name: str) -> None:
        self._inbox: SimpleQueue[Request[object, object] | None] = SimpleQueue()
        self._active: deque[Request[object, object]] = deque()
        self._stopping = threading.Event()
        self._stopped = threading.Event()
        self._at_exit: Callable[[], None] | None = None
        self._process = os.getpid()
        # A daemon: the interpreter would otherwise wait for it before finalisers could close it.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:  # Ctrl-C: the thread may run already, and nobody could stop it later
            self._stopping.set()
            self._inbox.put(None)
            raise

    @property
    def closed(self) -> bool:
        return self._stopping.is_set()

    def at_exit(self, function: Callable[[], None]) -> None:
        """Run `function` on the owner thread after its last job: the place to release the device."""
        self._at_exit = function

    def submit(self, job: Job[Item, Result], on_item: Callable[[], None] | None = None) -> Request[Item, Result]:
        """Queue a job. Raises EngineClosedError after `close`, and in a child process made by fork."""
        if os.getpid() != self._process:
            raise EngineClosedError(
                f"this engine lives in process {self._process}, and threads and devices do not survive a fork; "
                "make a new Engine in the child, or start it with the 'spawn' method"
            )
        if threading.current_thread() is self._thread:
            raise RuntimeError("the engine was called from its own thread, which would wait for itself for ever")
        if self._stopping.is_set():
            raise EngineClosedError("the engine is closed")
        request = Request(job, on_item)
        self._inbox.put(request)  # type: ignore[arg-type]  # the thread moves items, it never looks at them
        if self._stopped.is_set():  # the thread may have emptied the inbox for the last time before the put
            self._empty_inbox()
        return request

    def call(self, function: Callable[[], Result]) -> Result:
        """Run a function on the owner thread, between the steps of other jobs, and return its result."""

        def job(request: Request[None, Result]) -> Steps[None, Result]:
            return function()
            yield  # makes this a generator

        return self.submit(job).result()

    def post(self, function: Callable[[], None]) -> None:
        """Run a function on the owner thread without waiting; nothing if it is closed. Safe in finalisers."""

        def job(request: Request[None, None]) -> Steps[None, None]:
            function()
            return
            yield  # makes this a generator

        if not self._stopping.is_set() and os.getpid() == self._process:
            self._inbox.put(Request(job))  # type: ignore[arg-type]

    def close(self) -> None:
        """Stop after the running step; all waiting callers get EngineClosedError. From any thread; twice is fine."""
        if os.getpid() != self._process:
            return
        self._stopping.set()
        for request in list(self._active):
            request._engine_closed = True
            request.cancel_flag.set()
        self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        active = self._active
        while not self._stopping.is_set():
            try:
                while (request := self._inbox.get(block=not active)) is not None:
                    active.append(request)
            except Empty:
                pass
            if active and not self._stopping.is_set():
                active[0].is_alone = len(active) == 1
                # The request stays in `active` during its step, where `close` finds its cancel flag.
                if active[0]._step():
                    active.rotate(-1)
                else:
                    active.popleft()
            request = None
        for request in active:
            request._end(_closed_during_call())
        active.clear()
        try:
            if self._at_exit is not None:
                self._at_exit()
        finally:
            self._at_exit = None  # what it holds may go now
            self._stopped.set()
            self._empty_inbox()

    def _empty_inbox(self) -> None:
        while True:
            try:
                request = self._inbox.get_nowait()
            except Empty:
                return
            if request is not None:
                request._end(EngineClosedError("the engine is closed"))


def _closed_during_call() -> EngineClosedError:
    return EngineClosedError("the engine was closed during this call")
