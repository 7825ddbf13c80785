"""POST /v1/completions, in OpenAI's form: text or token ids in, text out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from ..engine import Engine
from ..outputs import Chunk, TokenLogprob
from ..params import SamplingParams
from ..stream import Stream, fold_completion
from .chunks import ChunkForm, finite
from .errors import unsupported
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


class CompletionForm(ChunkForm[CompletionRequest, Chunk]):
    route = "/v1/completions"
    id_prefix = "cmpl-"
    chunk_object = "text_completion"
    no_text: ClassVar[JsonObject] = {"text": ""}

    def __init__(self, request: CompletionRequest, id: str, model: str) -> None:
        super().__init__(request, id, model)
        self._prompt_ids: Sequence[int] = ()
        self._prompt = ""
        self._first_token = ""  # of the prompt
        self._offset = 0  # characters that were sent; text_offset of logprobs counts them

    def start(self, engine: Engine, on_item: Callable[[], None]) -> Stream:
        self._request.check()
        prompt = self._request.prompt_text()
        self._prompt_ids = engine._prompt_ids(prompt)
        if self._request.echo:
            self._prompt = prompt if isinstance(prompt, str) else engine.detokenize(prompt)
            self._first_token = engine.detokenize(self._prompt_ids[:1])
        return engine._stream(engine._plan_one(self._prompt_ids, self._request.params(), {}), on_item)

    def whole(self, items: Sequence[Chunk]) -> object:
        completion = fold_completion(items, self._prompt_ids)
        entries: list[TokenLogprob | None] = list(completion.logprobs or ())
        text, finish_reason, counted = completion.text, str(completion.finish_reason), completion.usage
        if self._request.only_scores:
            text, entries, finish_reason, counted = "", [], "length", replace(counted, completion_tokens=0)
        if self._request.echo and completion.prompt_logprobs is not None:
            entries = [*completion.prompt_logprobs, *entries]
        choice: JsonObject = {"text": self._prompt + text, "logprobs": None, "finish_reason": finish_reason}
        if self._request.logprobs is not None:
            choice["logprobs"] = self._logprobs(entries, 0)
        if self._request.prompt_logprobs is not None and completion.prompt_logprobs is not None:
            choice["prompt_logprobs"] = [_ranked(entry) for entry in completion.prompt_logprobs]
        return self._whole(self.chunk_object, choice, counted, completion.timing)

    def begin(self, run: Run[Chunk]) -> bytes:
        self._offset = len(self._prompt)
        return self._chunk({"text": self._prompt}) if self._request.echo else b""

    def _event(self, item: Chunk) -> bytes:
        logprobs = None if item.logprob is None else self._logprobs([item.logprob], self._offset)
        self._offset += len(item.text)
        return self._chunk({"text": item.text}, logprobs=logprobs) if item.text or logprobs else b""

    def _logprobs(self, entries: Sequence[TokenLogprob | None], offset: int) -> JsonObject:
        """OpenAI's four parallel lists; None for the first token of a prompt, before which nothing stands."""
        offsets = []
        for entry in entries:
            offsets.append(offset)
            offset += len(self._first_token if entry is None else entry.token)
        return {
            "tokens": [self._first_token if entry is None else entry.token for entry in entries],
            "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in entries],
            "top_logprobs": [
                None if entry is None else {top.token: finite(top.logprob) for top in entry.top_logprobs}
                for entry in entries
            ],
            "text_offset": offsets,
        }


def _ranked(entry: TokenLogprob | None) -> JsonObject | None:
    """As vLLM gives them: the alternatives by token id, and the token itself."""
    if entry is None:
        return None
    return {
        str(each.token_id): {"logprob": finite(each.logprob), "decoded_token": each.token}
        for each in (*entry.top_logprobs, entry)
    }
