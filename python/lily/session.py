"""One mutable timeline of tokens that the caller drives step by step."""

from __future__ import annotations

import threading
import weakref
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import index
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from . import _core
from .closing import Closing
from .errors import ContextLengthError, EngineClosedError, MemoryLimitError
from .generation import prefill_chunks
from .keywords import names_nearest_keyword
from .owner import Owner, Request, Steps
from .prefix_cache import PrefixCache
from .progress import Progress, ProgressOption, Started, prefill_report
from .state_file import StateFile, target
from .token_ids import check_token_ids


@names_nearest_keyword
class Session(Closing):
    """A timeline: the tokens computed so far and the logits after the last one.

    Usable from any thread; calls on one session wait for each other. Made by `Engine.session` or `Engine.prefill`.

    Greedy decoding by hand:

    >>> from lily import Engine
    >>> with Engine("lily-nano", max_context=1024) as engine, engine.session() as session:
    ...     prompt = engine.render([{"role": "user", "content": "33 / 11 = ?"}], reasoning=False)
    ...     num_reused = session.prefill(engine.tokenize(prompt))
    ...     while (token_id := int(session.logits.argmax())) not in engine.stop_token_ids:
    ...         print(engine.detokenize([token_id]), end="")
    ...         session.decode(token_id)
    3
    """

    def __init__(
        self,
        engine: object,
        owner: Owner,
        runtime: _core.Runtime,
        *,
        vocab_size: int,
        max_context: int,
        model_context: int | None,
        progress: ProgressOption,
        cache: PrefixCache | None,
        fingerprints: Callable[[], Mapping[str, str]],
        timeline: _core.Timeline | None = None,
    ) -> None:
        self._engine = engine  # an engine is not collected while it has sessions
        self._owner = owner
        self._runtime = runtime
        self._vocab_size = vocab_size
        self._max_context = max_context
        self._model_context = model_context  # the longest that the model was made for
        self._progress = progress
        self._cache = cache
        self._fingerprints = fingerprints
        self._lock = SessionLock()
        self._token_ids = array("I")
        self._has_logits = False
        timeline = timeline or owner.call(runtime.timeline)
        self._timeline: _core.Timeline | None = timeline
        self._finalizer = weakref.finalize(self, owner.post, timeline.close)

    def prefill(self, token_ids: Sequence[int]) -> int:
        """Extend the timeline to exactly `token_ids` and compute logits for the last one.

        token_ids: the full prefix, shape [n], 1 <= n <= max_context. Returns the number of tokens reused: those of
        this session if the prefix extends them, or a beginning in the engine's prefix cache, whichever is longer.
        What was computed before a Ctrl-C stays. Raises ValueError for an id outside the vocabulary, ContextLengthError
        if n > max_context, and MemoryLimitError before any work if the memory for n tokens is not there.
        """
        wanted = check_token_ids(token_ids, self._vocab_size)
        if not len(wanted):
            raise ValueError("prefill needs at least one token")
        if len(wanted) > self._max_context:
            raise context_length_error(len(wanted), 0, self._max_context, self._model_context)

        def job(request: Request[Progress, int]) -> Steps[Progress, int]:
            timeline = self._open_timeline()
            known = np.frombuffer(self._token_ids, dtype=np.uint32).copy()
            had_logits, reused = self._has_logits, len(known)
            extends = reused <= len(wanted) and np.array_equal(wanted[:reused], known)
            # The same prefix again needs nothing, if its last step left logits.
            if extends and reused == len(wanted) and had_logits:
                return reused
            if not extends or reused == len(wanted):
                reused = 0
            kept = known
            try:
                if self._cache is not None:
                    reused = self._cache.restore(timeline, wanted, len(wanted), reused)
                else:
                    if not reused:
                        timeline.check_restart(len(wanted))
                        timeline.reset()
                    timeline.reserve(len(wanted))
                kept, self._has_logits = wanted, False
                request.push(Started(reused, len(wanted)))
                yield from prefill_chunks(request, self._runtime, timeline, wanted, self._cache)  # type: ignore[arg-type]
                self._has_logits = True
            finally:
                self._token_ids = array("I", kept[: timeline.num_tokens].tobytes())
                self._has_logits = self._has_logits and len(self._token_ids) > 0
            return reused

        with self._lock, prefill_report(self._progress) as report:
            request = self._owner.submit(job)
            try:
                for progress in request:
                    report.update(progress)
            except BaseException:  # Ctrl-C, or the caller's own progress function
                request.cancel()
                raise
            return request.result()

    def decode(self, token_id: int) -> None:
        """Append one token and compute the logits after it.

        Raises ValueError for an id outside the vocabulary, ContextLengthError if the context is full.
        """
        with self._lock:
            decode_sessions([self], [token_id])

    def fork(self) -> Session:
        """A second session with the same tokens and logits; memory is shared until the two differ.

        Raises MemoryLimitError if there is no room for one more session.
        """
        with self._lock:
            branch = self._sibling(self._owner.call(self._open_timeline().fork))
            branch._token_ids = array("I", self._token_ids)
            branch._has_logits = self._has_logits
            return branch

    def truncate(self, num_tokens: int) -> int:
        """Go back to the first `num_tokens` tokens, or to fewer: the state exists only where the prefix cache kept it.

        Returns the number of tokens really kept; prefill the rest again. There are no logits then until the next step,
        unless nothing had to go.
        """
        try:
            num_tokens = index(num_tokens)
        except TypeError as error:
            raise TypeError(f"num_tokens must be an int, not {type(num_tokens).__name__}") from error
        if num_tokens < 0:
            raise ValueError(f"num_tokens is {num_tokens}; it must be at least 0")
        with self._lock:
            timeline = self._open_timeline()
            if num_tokens >= len(self._token_ids):
                return len(self._token_ids)
            wanted = np.array(self._token_ids[:num_tokens], np.uint32)

            def rewind() -> int:
                if self._cache is not None:
                    return self._cache.rewind(timeline, wanted)
                timeline.reset()
                return 0

            self._has_logits = False
            kept = self._owner.call(rewind)
            del self._token_ids[kept:]
            return kept

    def save(self, path: str | Path) -> None:
        """Write tokens, state and logits to one file, for `Engine.load_session`. The file appears whole or not at all.

        path: of the file, or of a link to it, which stays a link.
        Raises ValueError for a session without tokens, OSError if the file cannot be written, CheckpointError if the
        model's files were replaced before the first save: nothing would say which model the state is of.
        """
        file_path = target(Path(path))
        with self._lock:
            timeline = self._open_timeline()
            if not self._token_ids:
                raise ValueError("this session has no tokens to save: call prefill or decode first")
            logits = self._owner.call(lambda: timeline.logits.copy()) if self._has_logits else None
            recurrent_state, conv_state, kv = self._owner.call(timeline.read_state)
            file = StateFile(
                token_ids=np.array(self._token_ids, np.uint32),
                recurrent_state=recurrent_state,
                conv_state=conv_state,
                kv=kv,
                logits=logits,
                fingerprints=self._fingerprints(),
            )
        file.write(file_path)

    def _load(self, file: StateFile) -> None:
        """Take over what a file holds, into a new session. Raises MemoryLimitError, ValueError for another model's."""
        check_token_ids(file.token_ids, self._vocab_size)  # type: ignore[arg-type]  # an array is as good
        timeline, num_tokens = self._open_timeline(), len(file.token_ids)

        def load() -> None:
            if self._cache is not None:
                self._cache.reserve(timeline, num_tokens)
            timeline.load_state(num_tokens, file.recurrent_state, file.conv_state, file.kv, file.logits)

        self._owner.call(load)
        self._token_ids = array("I", file.token_ids.tobytes())
        self._has_logits = file.logits is not None

    def _sibling(self, timeline: _core.Timeline) -> Session:
        return Session(
            self._engine,
            self._owner,
            self._runtime,
            vocab_size=self._vocab_size,
            max_context=self._max_context,
            model_context=self._model_context,
            progress=self._progress,
            cache=self._cache,
            fingerprints=self._fingerprints,
            timeline=timeline,
        )

    @property
    def logits(self) -> NDArray[np.float32]:
        """float32 [vocab_size] after the last token: a read-only view, valid until the next step. Copy to keep it."""
        with self._lock:
            timeline = self._open_timeline()
            if not self._has_logits:
                raise ValueError("this session has no logits yet: call prefill or decode first")
            return self._owner.call(lambda: timeline.logits)

    @property
    def token_ids(self) -> list[int]:
        """The timeline, as a copy."""
        return self._token_ids.tolist()

    @property
    def num_computed_tokens(self) -> int:
        """Length of the timeline."""
        return len(self._token_ids)

    def close(self) -> None:
        """Free the memory of the timeline. May be called twice."""
        with self._lock:
            self._timeline = None
            self._finalizer()

    def __repr__(self) -> str:
        state = "closed" if self._timeline is None else f"{len(self._token_ids)} of {self._max_context} tokens"
        return f"Session({state})"

    def _open_timeline(self) -> _core.Timeline:
        if self._timeline is None:
            raise EngineClosedError("the session is closed")
        return self._timeline


class SessionLock:
    """One call at a time; a call from within a call, as a progress callback could make it, is refused."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None

    def __enter__(self) -> None:
        if self._holder == threading.get_ident():
            raise RuntimeError("the session is in use: a progress callback cannot call the session that it reports on")
        self._lock.acquire()
        self._holder = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        self._holder = None
        self._lock.release()


@contextmanager
def locked(sessions: Sequence[Session]) -> Iterator[None]:
    """Hold the locks of several sessions, always in the same order."""
    with ExitStack() as stack:
        for session in sorted(sessions, key=id):
            stack.enter_context(session._lock)
        yield


def decode_sessions(sessions: Sequence[Session], token_ids: Sequence[int]) -> None:
    """Append one token to each of these distinct sessions of one engine in one step; the caller holds their locks."""
    owner, runtime, max_context = sessions[0]._owner, sessions[0]._runtime, sessions[0]._max_context
    timelines = [session._open_timeline() for session in sessions]
    ids = check_token_ids(token_ids, sessions[0]._vocab_size).tolist()
    for session in sessions:
        if session.num_computed_tokens >= max_context:
            raise context_length_error(session.num_computed_tokens, 1, max_context, session._model_context)

    def step() -> None:
        try:
            for session, timeline in zip(sessions, timelines, strict=True):
                if session._cache is not None:
                    session._cache.reserve(timeline, timeline.num_tokens + 1)
            runtime.decode(timelines, ids)
        except (ValueError, MemoryLimitError):  # refused before it ran
            raise
        except BaseException:
            for session in sessions:
                session._has_logits = False
            raise
        for session, token_id in zip(sessions, ids, strict=True):
            session._token_ids.append(token_id)
            session._has_logits = True

    owner.call(step)


def context_length_error(
    prompt_tokens: int, max_tokens: int, max_context: int, model_context: int | None, *, at_least: bool = False
) -> ContextLengthError:
    """The error of a request that does not fit, with its numbers and what to change.

    model_context: the longest context of the model; None if it names none. at_least: the text was not made tokens of,
    and the numbers are those that it cannot be below.
    """
    least = "at least " if at_least else ""
    fix = "shorten the prompt or lower max_tokens"
    if model_context is None or max_context < model_context:
        fix = "shorten the prompt, lower max_tokens, or raise max_context if memory allows"
    return ContextLengthError(
        f"a prompt of {least}{prompt_tokens} tokens and a completion of {max_tokens} make "
        f"{least}{prompt_tokens + max_tokens}, "
        f"but the context holds {max_context}; {fix}",
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        max_context=max_context,
    )
