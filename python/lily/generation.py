"""One request on the owner thread: prefill in chunks, then a token a step, until something ends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from . import _core
from .detokenizer import Detokenizer
from .drawing import Drawing
from .errors import CancelledError, MemoryLimitError
from .guide import Guide
from .outputs import Chunk, FinishReason, Timing, TokenLogprob, Usage
from .owner import Request, Steps
from .params import ResolvedSampling
from .prefix_cache import PrefixCache
from .progress import Progress, Started
from .prompt_logprobs import prompt_steps

# Tokens of a prefill chunk while other requests wait for their turns: longer chunks are a little faster, and on a CPU
# take seconds. Every device takes chunks of so many.
_SHARED_CHUNK_TOKENS = 512


def prefill_chunks(
    request: Request[Progress, object],
    runtime: _core.Runtime,
    timeline: _core.Timeline,
    prompt: NDArray[np.uint32],
    cache: PrefixCache | None,
    sampling: _core.Sampling | None = None,
) -> Steps[Progress, _core.SampleResult | None]:
    """Extend the timeline, which holds a beginning of `prompt` [n], to all of it, one chunk a step.

    Returns what `sampling` drew after the last token. Chunks end where the cache keeps the state; if the prefill is
    cancelled or fails, the state after the chunks that are complete is kept too.
    """
    total, start = len(prompt), timeline.num_tokens
    places = cache.places(prompt, start) if cache is not None else []
    drawn = None
    try:
        while start < total:
            longest = runtime.max_chunk_tokens if request.is_alone else _SHARED_CHUNK_TOKENS
            end = min(start + longest, *places[:1], total)
            is_last = end == total
            drawn = runtime.prefill(
                timeline,
                prompt[start:end],
                wants_logits=is_last,
                sampling=sampling if is_last else None,
                cancel=request.cancel_flag,
            )
            if request.cancel_flag.is_set():
                raise CancelledError("the request was cancelled during its prefill")
            if cache is not None and places[:1] == [end]:
                cache.keep(prompt[:end], timeline, of_prompt=prompt)
                del places[0]
            request.push(Progress(end, total))
            start = end
            if not is_last:
                yield None
    except BaseException:
        if cache is not None:
            cache.keep(prompt[: timeline.num_tokens], timeline)
        raise
    return drawn


@dataclass(slots=True, kw_only=True)
class _Course:
    """What a running request has done so far. Times are those of perf_counter."""

    cached_tokens: int
    started: float
    first_token: float = 0.0
    output_ids: list[int] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Everything that a request needs, checked before it starts.

    max_tokens: at least 1 and within the context. stop_token_ids: all that end this request.
    id_to_bytes: bytes that each token adds to the text; empty for special tokens.
    guide: which tokens may be drawn; None if nothing but the sampling options decides. forbidden_token_ids: never.
    """

    prompt_token_ids: NDArray[np.uint32]
    sampling: ResolvedSampling
    max_tokens: int
    seed: int
    stop_token_ids: frozenset[int]
    id_to_bytes: Sequence[bytes]
    token_bytes: Sequence[bytes]
    submitted: float
    guide: Guide | None = None
    forbidden_token_ids: frozenset[int] = frozenset()

    def steps(
        self,
        request: Request[Chunk | Progress, None],
        runtime: _core.Runtime,
        running: list[_core.Timeline],
        cache: PrefixCache | None,
    ) -> Steps[Chunk | Progress, None]:
        """The job: yields a Chunk per token. On a cancelled request the error carries the usage so far.

        running: the timelines of all requests on this engine; without room for one more this waits for one of them.
        """
        timeline, cached_tokens = yield from self._wait_for_room(runtime, running, cache)
        running.append(timeline)
        request.push(Started(cached_tokens, len(self.prompt_token_ids)))
        course = _Course(cached_tokens=cached_tokens, started=perf_counter())
        try:
            drawing = Drawing(
                self.sampling,
                self.seed,
                stop_token_ids=self.stop_token_ids,
                forbidden_token_ids=self.forbidden_token_ids,
                guide=self.guide,
            )
            drawn = yield from self._prefill(request, runtime, timeline, cache, drawing, course)
            yield from self._decode(runtime, timeline, drawing, drawn, course)
        except CancelledError as error:
            error.usage = self._usage(course)
            raise
        finally:
            if cache is not None and len(course.output_ids) > 1:  # the answer is the beginning of what comes next
                computed = np.array(course.output_ids[:-1], np.uint32)
                cache.keep(np.concatenate([self.prompt_token_ids, computed])[: timeline.num_tokens], timeline)
            running.remove(timeline)
            timeline.close()

    def _wait_for_room(
        self, runtime: _core.Runtime, running: Sequence[_core.Timeline], cache: PrefixCache | None
    ) -> Steps[Chunk | Progress, tuple[_core.Timeline, int]]:
        """A timeline with memory for the whole request, and the number of prompt tokens it holds already.

        Where there is no room, requests that run give theirs back.
        """
        while True:
            try:
                timeline = runtime.timeline()
            except MemoryLimitError:
                if not running:
                    raise
                yield None
                continue
            try:
                return timeline, self._take_memory(timeline, cache)
            except BaseException as error:
                timeline.close()
                if not running or not isinstance(error, MemoryLimitError):
                    raise
            # Only then another attempt can end otherwise, and each may read a file of the cache.
            use = runtime.state_use
            while running and runtime.state_use == use:
                yield None

    def _take_memory(self, timeline: _core.Timeline, cache: PrefixCache | None) -> int:
        """Memory for the whole request, or MemoryLimitError; returns the number of prompt tokens that are cached."""
        # The last token is drawn, but never computed.
        num_tokens = len(self.prompt_token_ids) + self.max_tokens - 1
        if cache is None:
            timeline.reserve(num_tokens)
            return 0
        if self.sampling.given.prompt_logprobs is not None:  # for that each token must be computed
            cache.reserve(timeline, num_tokens)
            return 0
        return cache.restore(timeline, self.prompt_token_ids, num_tokens)

    def _prefill(
        self,
        request: Request[Chunk | Progress, None],
        runtime: _core.Runtime,
        timeline: _core.Timeline,
        cache: PrefixCache | None,
        drawing: Drawing,
        course: _Course,
    ) -> Steps[Chunk | Progress, _core.SampleResult]:
        """Compute the prompt, and its log-probabilities where they are wanted; returns the first drawn token."""
        if self.sampling.has_penalties:
            timeline.set_token_counts(self.prompt_token_ids.tolist(), [])
        num_logprobs = self.sampling.given.prompt_logprobs
        if num_logprobs is not None:
            results = yield from prompt_steps(
                request,  # type: ignore[arg-type]  # a queue of more than Progress takes Progress too
                runtime,
                timeline,
                self.prompt_token_ids,
                len(self.token_bytes),
                num_logprobs,
            )
            course.prompt_logprobs = (None, *map(self._logprob, results))
        drawn = yield from prefill_chunks(
            request,  # type: ignore[arg-type]
            runtime,
            timeline,
            self.prompt_token_ids,
            cache,
            drawing.first(timeline),
        )
        assert drawn is not None  # sampling was given
        course.first_token = perf_counter()
        return drawn

    def _decode(
        self,
        runtime: _core.Runtime,
        timeline: _core.Timeline,
        drawing: Drawing,
        drawn: _core.SampleResult,
        course: _Course,
    ) -> Steps[Chunk | Progress, None]:
        """Yield a Chunk for `drawn` and each token behind it, until one ends the request."""
        given, output_ids, guide = self.sampling.given, course.output_ids, self.guide
        text = Detokenizer(
            self.id_to_bytes, tuple(given.stop), include_stop_str_in_output=given.include_stop_str_in_output
        )
        while True:
            output_ids.append(drawn.token_id)
            num_tokens = len(output_ids)
            piece, finish_reason, stop_reason = self._read(text, drawn.token_id, num_tokens)
            if guide is not None and finish_reason != "stop":
                guide.push(drawn.token_id)
                if guide.finished:
                    piece, finish_reason = piece + ("" if finish_reason else text.flush()), "stop"
            logprob = self._logprob(drawn) if given.logprobs is not None else None
            if finish_reason is not None:
                break
            yield Chunk(text=piece, token_id=drawn.token_id, logprob=logprob)
            sampling, mask = drawing.next(timeline, num_tokens)
            (result,) = runtime.decode([timeline], None, sampling=[sampling], masks=[mask])
            assert result is not None
            drawn = result
        yield Chunk(
            text=piece,
            token_id=drawn.token_id,
            logprob=logprob,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            prompt_logprobs=course.prompt_logprobs,
            usage=self._usage(course),
            timing=self._timing(course),
        )

    def _read(
        self, text: Detokenizer, token_id: int, num_tokens: int
    ) -> tuple[str, FinishReason | None, str | int | None]:
        """Text of the token number `num_tokens`, why generation ends here (or None), and what matched."""
        given = self.sampling.given
        past_minimum = num_tokens > given.min_tokens
        if past_minimum and token_id in self.stop_token_ids:
            piece = text.push(token_id, look_for_stop=False)[0] if given.include_stop_str_in_output else ""
            return piece + text.flush(), "stop", token_id
        piece, stop = text.push(token_id, look_for_stop=past_minimum)
        if stop is not None:
            return piece, "stop", stop
        if num_tokens == self.max_tokens:
            return piece + text.flush(), "length", None
        return piece, None, None

    def _logprob(self, drawn: _core.SampleResult) -> TokenLogprob:
        def entry(token_id: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
            piece = self.token_bytes[token_id]
            return TokenLogprob(
                token=piece.decode(errors="replace"),
                token_id=token_id,
                logprob=logprob,
                bytes=piece,
                top_logprobs=top,
            )

        return entry(drawn.token_id, drawn.logprob, tuple(entry(*pair) for pair in drawn.top_logprobs))

    def _usage(self, course: _Course) -> Usage:
        return Usage(
            prompt_tokens=len(self.prompt_token_ids),
            completion_tokens=len(course.output_ids),
            cached_tokens=course.cached_tokens,
        )

    def _timing(self, course: _Course) -> Timing:
        prefill, decode = course.first_token - course.started, perf_counter() - course.first_token
        computed_tokens = len(self.prompt_token_ids) - course.cached_tokens
        return Timing(
            queue_seconds=course.started - self.submitted,
            prefill_seconds=prefill,
            decode_seconds=decode,
            prefill_tokens_per_second=computed_tokens / prefill if prefill > 0 else 0.0,
            decode_tokens_per_second=(len(course.output_ids) - 1) / decode if decode > 0 else 0.0,
        )
