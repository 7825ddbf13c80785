"""What chats and completions have in common in OpenAI's form: chunks of one choice, usage and timings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeVar

from ..outputs import Timing, TokenLogprob, Usage
from ..progress import Progress
from .errors import ApiError
from .form import Form
from .reply import DONE, sse
from .run import Item
from .schemas import JsonObject, SamplingFields

Sampled = TypeVar("Sampled", bound=SamplingFields)


class ChunkForm(Form[Sampled, Item]):
    """chunk_object: what the field `object` of a chunk says. no_text: a choice that says nothing."""

    chunk_object: ClassVar[str]
    no_text: ClassVar[JsonObject]

    def progress(self, progress: Progress, cached_tokens: int, seconds: float) -> bytes:
        if not self._request.return_progress:
            return b""
        return self._chunk(self.no_text, prompt_progress=prompt_progress(progress, cached_tokens, seconds))

    def delta(self, items: Sequence[Item]) -> bytes:
        self._last = items[-1]
        return b"".join(map(self._event, items))

    @abstractmethod
    def _event(self, item: Item) -> bytes:
        """The chunk of an item, empty if it holds nothing to show."""

    def end(self) -> bytes:
        last = self._last
        assert last is not None and last.usage is not None and last.timing is not None
        extra: JsonObject = {"timings": timings(last.usage, last.timing)} if self._request.timings else {}
        out = self._chunk(self.no_text, finish_reason=last.finish_reason, **extra)
        if self._request.includes_usage:
            out += sse({**self._head(self.chunk_object), "choices": [], "usage": usage(last.usage), **extra})
        return out + DONE

    def failed(self, error: ApiError, request_id: str) -> bytes:
        return sse({"error": error.openai()})

    def _whole(self, kind: str, choice: Mapping[str, object], counted: Usage, timing: Timing) -> JsonObject:
        """The whole answer. kind: what its field `object` says."""
        body = {**self._head(kind), "choices": [{"index": 0, **choice}], "usage": usage(counted)}
        return body | {"timings": timings(counted, timing)} if self._request.timings else body

    def _chunk(
        self, part: JsonObject, *, logprobs: object = None, finish_reason: str | None = None, **extra: object
    ) -> bytes:
        choice = {"index": 0, **part, "logprobs": logprobs, "finish_reason": finish_reason}
        return sse({**self._head(self.chunk_object), "choices": [choice], **extra})

    def _head(self, kind: str) -> JsonObject:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


def finite(logprob: float) -> float:
    """JSON has no -inf: OpenAI writes -9999 for a token that could not be drawn."""
    return max(logprob, -9999.0)


def logprob(entry: TokenLogprob) -> JsonObject:
    """A token of a chat in OpenAI's form."""
    return {**_logprob_head(entry), "top_logprobs": [*map(_logprob_head, entry.top_logprobs)]}


def _logprob_head(entry: TokenLogprob) -> JsonObject:
    return {"token": entry.token, "logprob": finite(entry.logprob), "bytes": [*entry.bytes]}


def usage(usage: Usage) -> JsonObject:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def timings(usage: Usage, timing: Timing) -> JsonObject:
    """Under llama-server's names: milliseconds, and tokens per second without those from the cache."""
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": usage.prompt_tokens - usage.cached_tokens,
        "prompt_ms": 1000 * timing.prefill_seconds,
        "prompt_per_second": timing.prefill_tokens_per_second,
        "predicted_n": usage.completion_tokens,
        "predicted_ms": 1000 * timing.decode_seconds,
        "predicted_per_second": timing.decode_tokens_per_second,
    }


def prompt_progress(progress: Progress, cached_tokens: int, seconds: float) -> JsonObject:
    """Under llama-server's names. processed: tokens that are computed or cached, of `total`."""
    return {
        "total": progress.total,
        "cache": cached_tokens,
        "processed": progress.done,
        "time_ms": round(1000 * seconds),
    }
