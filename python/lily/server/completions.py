"""POST /v1/completions, in OpenAI's form: text or token ids in, text out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import time
from typing import Any, Final

from ..engine import Engine
from ..outputs import Chunk, TokenLogprob
from ..params import SamplingParams
from ..progress import Progress
from ..stream import Stream, fold_completion
from .answer import Form
from .chat import prompt_progress, timings, usage
from .errors import ApiError, unsupported
from .reply import DONE, sse
from .run import Run
from .schemas import JsonObject, SamplingFields

DEFAULT_MAX_TOKENS: Final = 16  # OpenAI's, where chats have none


class CompletionRequest(SamplingFields, kw_only=True):
    prompt: str | list[Any]  # of token ids, or of one prompt
    echo: bool | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    suffix: str | None = None
    best_of: int | None = None

    def check(self) -> None:
        """Raises ApiError for fields that are known, but would be ignored."""
        if self.suffix is not None:
            raise unsupported("suffix", "suffix is not supported: the model writes what follows a prompt")
        if self.best_of not in (None, 1):
            raise unsupported("best_of", f"best_of is {self.best_of}; only 1 answer per request is supported")
        if self.prompt_logprobs is not None and self.stream:
            raise unsupported("prompt_logprobs", "prompt_logprobs is not supported with stream")
        if self.echo and self.stream and self.logprobs is not None:
            raise unsupported("echo", "echo is not supported with both stream and logprobs")

    def prompt_text(self) -> str | list[int]:
        """Raises TypeError for what is neither text nor token ids, ApiError for several prompts."""
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], (str, list)):
            if len(prompt) > 1:
                raise unsupported("prompt", f"{len(prompt)} prompts are given; send one request for each of them")
            prompt = prompt[0]
        if isinstance(prompt, str):
            return prompt
        if not all(isinstance(token_id, int) and not isinstance(token_id, bool) for token_id in prompt):
            raise TypeError("prompt must be text, a list of token ids, or a list of one of them")
        return prompt

    @property
    def only_scores(self) -> bool:
        """max_tokens 0 with echo asks for the log-probabilities of the prompt alone."""
        return bool(self.echo) and self.max_tokens == 0

    def params(self) -> SamplingParams:
        scored = self.prompt_logprobs
        if self.echo and self.logprobs is not None:
            scored = self.logprobs if scored is None else max(scored, self.logprobs)
        max_tokens = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        self.max_tokens, given = None, self.max_tokens
        try:
            return self.sampling_params(
                max_tokens=1 if given == 0 and self.echo else max_tokens, logprobs=self.logprobs, prompt_logprobs=scored
            )
        finally:
            self.max_tokens = given


@dataclass(slots=True)
class CompletionForm(Form[Chunk]):
    route = "/v1/completions"

    request: CompletionRequest
    id: str
    model: str
    created: int = field(default_factory=lambda: int(time()))
    _prompt_ids: Sequence[int] = ()
    _prompt: str = ""
    _first_token: str = ""  # of the prompt
    _offset: int = 0  # characters that were sent; text_offset of logprobs counts them
    _last: Chunk | None = None

    @property
    def wants_stream(self) -> bool:
        return bool(self.request.stream)

    def start(self, engine: Engine, on_item: Callable[[], None]) -> Stream:
        self.request.check()
        prompt = self.request.prompt_text()
        self._prompt_ids = engine._prompt_ids(prompt)
        if self.request.echo:
            self._prompt = prompt if isinstance(prompt, str) else engine.detokenize(prompt)
            self._first_token = engine.detokenize(self._prompt_ids[:1])
        return engine._stream(engine._plan(self._prompt_ids, self.request.params()), on_item)

    def whole(self, items: Sequence[Chunk]) -> object:
        completion = fold_completion(items, self._prompt_ids)
        entries: list[TokenLogprob | None] = list(completion.logprobs or ())
        text, finish_reason, counted = completion.text, str(completion.finish_reason), completion.usage
        if self.request.only_scores:
            text, entries, finish_reason, counted = "", [], "length", replace(counted, completion_tokens=0)
        if self.request.echo and completion.prompt_logprobs is not None:
            entries = [*completion.prompt_logprobs, *entries]
        choice: JsonObject = {
            "index": 0,
            "text": self._prompt + text,
            "logprobs": None,
            "finish_reason": finish_reason,
        }
        if self.request.logprobs is not None:
            choice["logprobs"] = self._logprobs(entries, 0)
        if self.request.prompt_logprobs is not None and completion.prompt_logprobs is not None:
            choice["prompt_logprobs"] = [_ranked(entry) for entry in completion.prompt_logprobs]
        body = {**self._head(), "choices": [choice], "usage": usage(counted)}
        if self.request.timings:
            body["timings"] = timings(counted, completion.timing)
        return body

    def begin(self, run: Run[Chunk]) -> bytes:
        self._offset = len(self._prompt)
        return self._chunk(self._prompt) if self.request.echo else b""

    def progress(self, progress: Progress, cached_tokens: int, seconds: float) -> bytes:
        if not self.request.return_progress:
            return b""
        return self._chunk("", prompt_progress=prompt_progress(progress, cached_tokens, seconds))

    def delta(self, items: Sequence[Chunk]) -> bytes:
        return b"".join(map(self._event, items))

    def _event(self, item: Chunk) -> bytes:
        self._last = item
        logprobs = None if item.logprob is None else self._logprobs([item.logprob], self._offset)
        self._offset += len(item.text)
        return self._chunk(item.text, logprobs=logprobs) if item.text or logprobs else b""

    def end(self) -> bytes:
        last = self._last
        assert last is not None and last.usage is not None and last.timing is not None
        extra: JsonObject = {"timings": timings(last.usage, last.timing)} if self.request.timings else {}
        out = self._chunk("", finish_reason=last.finish_reason, **extra)
        if self.request.includes_usage:
            out += sse({**self._head(), "choices": [], "usage": usage(last.usage), **extra})
        return out + DONE

    def failed(self, error: ApiError, request_id: str) -> bytes:
        return sse({"error": error.openai()})

    def _head(self) -> JsonObject:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}

    def _chunk(self, text: str, *, logprobs: object = None, finish_reason: str | None = None, **extra: object) -> bytes:
        choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        return sse({**self._head(), "choices": [choice], **extra})

    def _logprobs(self, entries: Sequence[TokenLogprob | None], offset: int) -> JsonObject:
        """OpenAI's four parallel lists; None for the first token of a prompt, before which nothing stands."""
        offsets = []
        for entry in entries:
            offsets.append(offset)
            offset += len(self._first_token if entry is None else entry.token)
        return {
            "tokens": [self._first_token if entry is None else entry.token for entry in entries],
            "token_logprobs": [None if entry is None else _finite(entry.logprob) for entry in entries],
            "top_logprobs": [
                None if entry is None else {top.token: _finite(top.logprob) for top in entry.top_logprobs}
                for entry in entries
            ],
            "text_offset": offsets,
        }


def _finite(logprob: float) -> float:
    return max(logprob, -9999.0)


def _ranked(entry: TokenLogprob | None) -> JsonObject | None:
    """As vLLM gives them: the alternatives by token id, and the token itself."""
    if entry is None:
        return None
    return {
        str(each.token_id): {"logprob": _finite(each.logprob), "decoded_token": each.token}
        for each in (*entry.top_logprobs, entry)
    }
