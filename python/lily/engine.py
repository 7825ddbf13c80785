"""The engine: a loaded model, and the verbs that programs use."""

from __future__ import annotations

import asyncio
import logging
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Final, Unpack, cast, overload

import numpy as np
from numpy.typing import NDArray

from . import _core
from .answer import ResponseFormat, ToolChoice
from .async_stream import AsyncStream
from .chat_template import RenderedPrompt, load_chat_template
from .closing import Closing
from .config import ModelConfig, load_config
from .disk_cache import DiskCache
from .engine_options import DeviceName, DtypeName, check_max_context, check_options
from .files import home_path
from .fingerprint import fingerprints, identity
from .generation import Generation
from .hub import find_model
from .keywords import names_nearest_keyword
from .loading import load_runtime
from .memory import default_limit, format_bytes, parse_bytes
from .messages import Message
from .outputs import ChatChunk, ChatReply, Chunk, Completion
from .owner import Owner, Request, Steps
from .params import SamplingOverrides, SamplingParams, merged_params
from .planner import ChatOptions, Planner, Prompt, is_single, tokenize
from .prefix_cache import PrefixCache
from .progress import Progress, ProgressOption, ProgressReport, prefill_report, wants_progress
from .reasoning import Reasoning, read_reasoning
from .scoring import score_labels
from .session import Session, context_length_error, decode_sessions, locked
from .state_file import StateFile, snapshot_error
from .stream import ChatStream, Stream
from .token_ids import check_token_ids
from .tokenizer import Tokenizer, check_stop_ids
from .tools import ToolLike, as_tools

_log: Final = logging.getLogger("lily")
_numbers: Final = count()


@names_nearest_keyword
class Engine(Closing):
    """A model on a device, ready for any number of requests from any thread.

    model: a folder, a Hugging Face id in the local cache, or "lily-nano", which comes with lily.
    max_context: tokens of prompt and completion; None is what fits into memory, at most the model's limit.
    memory_limit: bytes, or text like "24GiB"; None is 80 % of what the machine has available now. At most what the
        GPU of a Mac may hold (`lily doctor` says how much, and the command that raises it).
    prefix_cache_bytes: of it, for kept beginnings of prompts (`prefix_cache`); None is a quarter of what is left after
    the model, 0 keeps nothing. cache_dir: a folder that keeps them longer, for other processes too; None is none.
    chat_template: Jinja text or a path, instead of the checkpoint's own.
    progress: of loading and prefill: True, False, or a function of (done, total), called in the thread that waits.
    None shows a bar in terminals and notebooks.

    Raises CheckpointError for a model that cannot be used, MemoryLimitError if it does not fit, DeviceError.
    One thread owns the device; requests of several threads take turns, a prefill chunk or a token each.
    Ctrl-C, or closing a stream, ends a request at its next step. `close`, or the end of the `with` block, frees all.

    >>> with Engine("lily-nano", max_context=1024) as engine:
    ...     print(engine.chat([{"role": "user", "content": "Who are you?"}], reasoning=False, temperature=0).content)
    I am lily-nano, a very small language model made to test the lily engine.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        revision: str | None = None,
        device: DeviceName = "auto",
        dtype: DtypeName = "auto",
        max_context: int | None = None,
        memory_limit: int | str | None = None,
        prefix_cache_bytes: int | str | None = None,
        cache_dir: str | Path | None = None,
        chat_template: str | Path | None = None,
        progress: ProgressOption = None,
    ) -> None:
        check_options(
            model=model,
            device=device,
            dtype=dtype,
            cache_dir=cache_dir,
            chat_template=chat_template,
            progress=progress,
        )
        self._model = str(model)
        self._progress = progress
        cache_folder = None if cache_dir is None else home_path("cache_dir", cache_dir)
        cache_bytes = None if prefix_cache_bytes is None else parse_bytes(prefix_cache_bytes, least=0)
        folder = find_model(model, revision)
        self._config = load_config(folder)
        check_max_context(max_context, self._config.max_position_embeddings)
        self._memory_limit = default_limit() if memory_limit is None else parse_bytes(memory_limit)
        self._tokenizer = Tokenizer(folder, self._config.vocab_size)
        check_stop_ids(folder, self._tokenizer, self._config.stop_token_ids)
        files = identity(folder)
        self._chat_template = load_chat_template(folder, self._tokenizer, chat_template)
        self._running: list[_core.Timeline] = []  # of generations; used by the owner thread only
        self._owner = Owner(f"lily-engine-{next(_numbers)}")
        try:
            self._finalizer = weakref.finalize(self, self._owner.close)
            self._runtime = load_runtime(
                self._owner,
                folder,
                self._config,
                device=device,
                dtype=dtype,
                max_context=max_context,
                memory_limit=self._memory_limit,
                prefix_cache_bytes=cache_bytes,
                report=ProgressReport(progress, f"loading {self._model}", "B"),
            )
            source = self._chat_template.source if self._chat_template is not None else None
            # Read when they are first needed: samples of all weight files.
            self._fingerprints = cache(partial(fingerprints, folder, self._config, self._runtime.dtype, source, files))
            disk = None if cache_folder is None else DiskCache(cache_folder, self._fingerprints())
            self._prefix_cache = PrefixCache(
                self._owner, self._runtime, border_token_id=self._tokenizer.added_tokens.get("<|im_start|>"), disk=disk
            )
            self._owner.at_exit(_closing(self._runtime, disk))
        except BaseException:
            self._owner.close()
            raise
        self._memory_limit = self._runtime.memory_limit  # a GPU may hold less than was given
        self._max_context = self._runtime.max_context
        self._planner = Planner(self._model, self._config, self._tokenizer, self._chat_template, self._max_context)
        report = f"{self._model} on {self._runtime.device}: {self._max_context:,} tokens of context fit"
        _log.info(report)
        if not callable(progress) and wants_progress(progress):
            print(report, file=sys.stderr)

    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Unpack[SamplingOverrides]
    ) -> Completion: ...

    @overload
    def generate(
        self, prompt: list[Prompt], params: SamplingParams | None = None, **overrides: Unpack[SamplingOverrides]
    ) -> list[Completion]: ...

    def generate(
        self,
        prompt: Prompt | list[Prompt],
        params: SamplingParams | None = None,
        **overrides: Unpack[SamplingOverrides],
    ) -> Completion | list[Completion]:
        """Complete a prompt, or each of a list of prompts (independent of each other, results in the same order).

        prompt: text or token ids. Control tokens written in text stay text, except those of `render`'s result;
        `tokenize(text, allow_special=True)` makes ids of them. params: SamplingParams, whose fields keywords override.
        Raises ContextLengthError before any work if a prompt and max_tokens do not fit, ValueError for a bad prompt,
        TypeError for an unknown keyword.
        """
        completions = [self._stream(plan).result() for plan in self._plans(prompt, params, overrides)]
        return completions[0] if is_single(prompt) else completions

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Unpack[SamplingOverrides]
    ) -> Stream:
        """As generate for one prompt, token by token. The request starts at once; closing the stream cancels it."""
        return self._stream(self._plan_one(prompt, params, overrides))

    @overload
    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Unpack[SamplingOverrides]
    ) -> Completion: ...

    @overload
    async def agenerate(
        self, prompt: list[Prompt], params: SamplingParams | None = None, **overrides: Unpack[SamplingOverrides]
    ) -> list[Completion]: ...

    async def agenerate(
        self,
        prompt: Prompt | list[Prompt],
        params: SamplingParams | None = None,
        **overrides: Unpack[SamplingOverrides],
    ) -> Completion | list[Completion]:
        """As generate, for event loops. Cancelling the task cancels the request at its next step."""
        plans = await asyncio.to_thread(self._plans, prompt, params, overrides)
        completions = [await AsyncStream(partial(self._stream, plan)).result() for plan in plans]
        return completions[0] if is_single(prompt) else completions

    def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Unpack[SamplingOverrides]
    ) -> AsyncStream[Chunk, Completion]:
        """As stream, for event loops. The request is checked and starts when the first chunk is awaited."""
        return AsyncStream(lambda on_item: self._stream(self._plan_one(prompt, params, overrides), on_item))

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[ToolLike] | None = None,
        tool_choice: ToolChoice | None = None,
        parallel_tool_calls: bool = True,
        response_format: ResponseFormat | None = None,
        reasoning: Reasoning | None = None,
        **overrides: Unpack[SamplingOverrides],
    ) -> ChatReply:
        """Answer a conversation of OpenAI-style messages.

        params: SamplingParams, whose fields keywords override.
        tools: OpenAI-style dicts, or Python functions, described by their signatures and docstrings. What the model
        wants to call is in `tool_calls`; the caller runs it and sends the result as a message with the role "tool".
        tool_choice: "none", "auto" (the default), "required", the name of a tool, or OpenAI's {"type": "function",
        "function": {"name": ...}}; all but "auto" are enforced. parallel_tool_calls: False allows one call at most.
        response_format: {"type": "text" | "json_object"}, or "json_schema" with {"json_schema": {"schema": ...}}. It
        holds for the answer behind the think block.
        reasoning: False for none, True for as much as the model likes, a number of tokens or "low", "medium", "high"
        (1024, 4096, 16384 tokens) for a think block that is closed then; None is the template's default.
        Raises ChatTemplateError for messages that the template refuses, ToolCallError for tools that cannot be
        described or chosen, GrammarError for schemas that cannot be enforced; otherwise as generate.
        """
        return self.stream_chat(
            messages,
            params,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            response_format=response_format,
            reasoning=reasoning,
            **overrides,
        ).result()

    def stream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> ChatStream:
        """As chat, with the same options, token by token."""
        return self._chat_stream(messages, None, params=params, **options)

    async def achat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> ChatReply:
        """As chat, with the same options, for event loops. Cancelling the task cancels the request at its next step."""
        return await self.astream_chat(messages, params, **options).result()

    def astream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Unpack[ChatOptions]
    ) -> AsyncStream[ChatChunk, ChatReply]:
        """As stream_chat, for event loops. The request is checked and starts when the first chunk is awaited."""
        return AsyncStream(lambda on_item: self._chat_stream(messages, on_item, params=params, **options))

    def _chat_stream(
        self,
        messages: Sequence[Message],
        on_item: Callable[[], None] | None,
        *,
        params: SamplingParams | None = None,
        **options: Unpack[ChatOptions],
    ) -> ChatStream:
        plan, parser = self._planner.chat(messages, params, **options)
        return ChatStream(self._stream(plan, on_item), parser)

    def score(self, prompt: Prompt, labels: Sequence[Prompt]) -> list[float]:
        """Natural log-probability of each label (text or token ids) as what follows the prompt, in the same order.

        A label is tokenised by itself, so its leading space counts; its score is the sum over its tokens. Labels of
        one token need no work beyond the prompt. Raises as generate; ValueError for a label without tokens.

        >>> with Engine("lily-nano", max_context=1024) as engine:
        ...     prompt = engine.render([{"role": "user", "content": "33 / 11 = ?"}], reasoning=False)
        ...     scores = engine.score(prompt, ["3", "4"])
        >>> scores[0] > scores[1]
        True
        """
        if isinstance(labels, str) or not isinstance(labels, Sequence) or not labels:
            raise ValueError(f"score needs a list of one or more labels, not {labels!r}")
        least = self._planner.least_tokens(prompt), max(map(self._planner.least_tokens, labels))
        if max(least) > 1 and sum(least) > self._max_context:
            raise context_length_error(*least, self._max_context, self._config.max_position_embeddings, at_least=True)
        prompt_ids = check_token_ids(self._prompt_ids(prompt), self._config.vocab_size)
        label_ids = [check_token_ids(self._prompt_ids(label), self._config.vocab_size) for label in labels]
        if not len(prompt_ids):
            raise ValueError("the prompt has no tokens")
        longest = max(map(len, label_ids))
        for label, ids in zip(labels, label_ids, strict=True):
            if not len(ids):
                raise ValueError(f"the label {label!r} has no tokens")
        if len(prompt_ids) + longest > self._max_context:
            raise context_length_error(
                len(prompt_ids), longest, self._max_context, self._config.max_position_embeddings
            )
        with self.session() as session:
            return score_labels(session, prompt_ids.tolist(), [ids.tolist() for ids in label_ids])

    def session(self) -> Session:
        """An empty timeline that the caller drives. Raises MemoryLimitError if there is no room for one more."""
        return Session(
            self,
            self._owner,
            self._runtime,
            vocab_size=self._config.vocab_size,
            max_context=self._max_context,
            model_context=self._config.max_position_embeddings,
            progress=self._progress,
            cache=self._prefix_cache if self._prefix_cache.enabled else None,
            fingerprints=self._fingerprints,
        )

    def load_session(self, path: str | Path) -> Session:
        """A new session that continues what `Session.save` wrote.

        Raises SnapshotError for a file that is damaged or of another model, quantisation, tokenizer or chat template,
        ContextLengthError if it is longer than this engine's context, MemoryLimitError; of a closed engine always
        EngineClosedError.
        """
        session = self.session()
        try:
            file = StateFile.read(Path(path), self._fingerprints())
            if len(file.token_ids) > self._max_context:
                raise context_length_error(
                    len(file.token_ids), 0, self._max_context, self._config.max_position_embeddings
                )
            try:
                session._load(file)
            except ValueError as error:
                raise snapshot_error(Path(path), f"it holds no state of this model: {error}") from error
        except BaseException:
            session.close()
            raise
        return session

    def prefill(self, token_ids: Sequence[int]) -> Session:
        """A new session that has computed `token_ids` [n] and holds the logits after the last one."""
        session = self.session()
        try:
            session.prefill(token_ids)
        except BaseException:
            session.close()
            raise
        return session

    def decode(self, sessions: Sequence[Session], token_ids: Sequence[int]) -> NDArray[np.float32]:
        """Append one token to each of R distinct sessions in one step; returns a copy of the logits [R, vocab_size].

        R is 1 to `runtime.max_step_rows`, which is 8. Raises ContextLengthError, MemoryLimitError, and ValueError for
        anything else that does not fit.
        """
        if not sessions or len(sessions) != len(token_ids):
            raise ValueError(f"decode needs one token id per session: {len(sessions)} sessions, {len(token_ids)} ids")
        if not all(isinstance(session, Session) for session in sessions):
            raise TypeError(f"decode takes sessions, not {[type(session).__name__ for session in sessions]}")
        if len(set(map(id, sessions))) < len(sessions):
            raise ValueError("decode got the same session twice; a session takes one token a step")
        if any(session._owner is not self._owner for session in sessions):
            raise ValueError("decode got a session of another engine")
        with locked(sessions):
            decode_sessions(sessions, token_ids)
            timelines = [session._open_timeline() for session in sessions]
            return self._owner.call(lambda: np.stack([timeline.logits for timeline in timelines]))

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def runtime(self) -> _core.Runtime:
        """The native side: device, dtype, max_context, memory_bytes, load_report, decode_stats(), prefill_stats()."""
        return self._runtime

    @property
    def prefix_cache(self) -> PrefixCache:
        """Kept beginnings of prompts, shared by all requests and sessions of this engine."""
        return self._prefix_cache

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end a completion: those of generation_config.json, config.json and the tokenizer's eos_token."""
        return self._config.stop_token_ids

    @property
    def max_context(self) -> int:
        """Tokens of prompt and completion together that fit."""
        return self._max_context

    def tokenize(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Token ids of text. Control tokens written in it stay text, unless allow_special or made by `render`."""
        return tokenize(self._tokenizer, text, allow_special=allow_special)

    def detokenize(self, token_ids: Iterable[int]) -> str:
        """Text of token ids, control tokens included."""
        return self._tokenizer.decode(token_ids)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolLike] | None = None,
        reasoning: Reasoning | None = None,
    ) -> RenderedPrompt:
        """The prompt that `chat` gives to the model, as text that remembers which control tokens the template wrote."""
        return self._planner.render(messages, as_tools(tools), read_reasoning(reasoning)[0])

    def close(self) -> None:
        """Stop after the running step and free the model. Callers that wait get EngineClosedError. Twice is fine."""
        self._owner.close()

    def __repr__(self) -> str:
        if self._owner.closed:
            return f"Engine({self._model!r}, closed)"
        runtime = self._runtime
        planned = format_bytes(sum(runtime.memory_bytes.values()))
        return (
            f"Engine({self._model!r}: {self._config.model_type} on {runtime.device_description}, {runtime.dtype}, "
            f"{self._max_context:,} tokens of context, at most {planned} of {format_bytes(self._memory_limit)} memory)"
        )

    def _prompt_ids(self, prompt: Prompt, max_tokens: int = 1) -> Sequence[int]:
        return self._planner.prompt_ids(prompt, max_tokens)

    def _plan_one(self, prompt: Prompt, params: SamplingParams | None, overrides: SamplingOverrides) -> Generation:
        if not is_single(prompt):
            raise TypeError("a stream takes one prompt, text or token ids; generate takes a list of them")
        given = merged_params(params, overrides)
        return self._planner.plan(self._prompt_ids(prompt, given.max_tokens or 1), given)

    def _plans(
        self, prompt: Prompt | list[Prompt], params: SamplingParams | None, overrides: SamplingOverrides
    ) -> list[Generation]:
        """A plan for each prompt: all are checked before the first one starts."""
        given = merged_params(params, overrides)
        prompts = [cast(Prompt, prompt)] if is_single(prompt) else cast(list[Prompt], prompt)
        for place, one in enumerate(prompts):
            if not is_single(one):
                raise TypeError(f"prompt {place} of the list is a list of prompts itself")
        return [self._planner.plan(self._prompt_ids(one, given.max_tokens or 1), given) for one in prompts]

    def _stream(self, plan: Generation, on_item: Callable[[], None] | None = None) -> Stream:
        runtime, running = self._runtime, self._running
        prefix_cache = self._prefix_cache if self._prefix_cache.enabled else None

        def job(request: Request[Chunk | Progress, None]) -> Steps[Chunk | Progress, None]:
            return plan.steps(request, runtime, running, prefix_cache)

        report = prefill_report(self._progress)
        return Stream(self._owner.submit(job, on_item), report, self, plan.prompt_token_ids.tolist())


def _closing(runtime: _core.Runtime, disk: DiskCache | None) -> Callable[[], None]:
    """What the owner thread does last. Holds no engine, which could not be collected then."""

    def close() -> None:
        try:
            if disk is not None:
                disk.close()
        finally:
            runtime.close()

    return close
