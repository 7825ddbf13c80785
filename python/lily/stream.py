"""What a caller iterates: chunks of a running request, and their folds into one result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from .closing import Closing
from .errors import CancelledError
from .keywords import names_nearest_keyword
from .outputs import ChatChunk, ChatReply, Chunk, Completion, ToolCall
from .owner import Request
from .parse import ReplyParser
from .progress import Progress, ProgressReport


@names_nearest_keyword
class Stream(Iterator[Chunk], Closing):
    """Chunks of one request, one per token. Closing or dropping it, or Ctrl-C while waiting, cancels the request.

    A thread that waits in `next` while another one closes the stream gets CancelledError with the usage so far.
    """

    def __init__(
        self,
        request: Request[Chunk | Progress, None],
        report: ProgressReport,
        engine: object,
        prompt_token_ids: Sequence[int],
    ) -> None:
        self._request = request
        self._report = report
        self._engine = engine  # an engine is not collected while somebody reads from it
        self._prompt_token_ids = prompt_token_ids
        self._chunks: list[Chunk] = []
        self._on_progress: Callable[[Progress], None] = report.update
        self._closed = False

    @property
    def prompt_tokens(self) -> int:
        return len(self._prompt_token_ids)

    def on_progress(self, function: Callable[[Progress], None]) -> None:
        """Give the progress of the prompt to `function`, in the thread that reads, instead of showing it."""
        self._on_progress = function

    def __next__(self) -> Chunk:
        if self._closed:
            raise StopIteration
        try:
            while isinstance(item := next(self._request), Progress):
                self._on_progress(item)
        except BaseException:
            self.close()
            raise
        self._chunks.append(item)
        return item

    def poll(self) -> Chunk | None:
        """As next, but None if there is nothing yet."""
        if self._closed:
            raise StopIteration
        try:
            while isinstance(item := self._request.poll(), Progress):
                self._on_progress(item)
        except BaseException:
            self.close()
            raise
        if item is not None:
            self._chunks.append(item)
        return item

    def result(self) -> Completion:
        """The whole completion, as generate gives it; waits for what has not been read. Raises what the request raises,
        CancelledError if the stream was closed before its end."""
        for _ in self:
            pass
        _check_complete(self._chunks)
        return fold_completion(self._chunks, self._prompt_token_ids)

    def close(self) -> None:
        """Cancel the request if it still runs. May be called twice, and from any thread."""
        self._closed = True
        self._request.cancel()
        self._report.close()

    def __del__(self) -> None:
        self._request.cancel()

    def __repr__(self) -> str:
        return f"Stream({_state(self._chunks, self._closed)})"


@names_nearest_keyword
class ChatStream(Iterator[ChatChunk], Closing):
    """Chunks of one answer: reasoning, content and tool calls apart. Closing works as for Stream."""

    def __init__(self, chunks: Stream, parser: ReplyParser) -> None:
        self._chunks = chunks
        self._parser = parser
        self._reasoning_tokens = 0
        self._read_chunks: list[ChatChunk] = []

    def __next__(self) -> ChatChunk:
        return self._read(next(self._chunks))

    def poll(self) -> ChatChunk | None:
        """As next, but None if there is nothing yet."""
        chunk = self._chunks.poll()
        return None if chunk is None else self._read(chunk)

    @property
    def prompt_tokens(self) -> int:
        return self._chunks.prompt_tokens

    def on_progress(self, function: Callable[[Progress], None]) -> None:
        """As for Stream."""
        self._chunks.on_progress(function)

    def _read(self, chunk: Chunk) -> ChatChunk:
        if self._parser.inside:
            self._reasoning_tokens += 1
        pieces = [self._parser.push(chunk.text)]
        if chunk.finish_reason is not None:
            pieces.append(self._parser.flush())
        wants_calls = chunk.finish_reason == "stop" and self._parser.num_calls > 0
        read = ChatChunk(
            content="".join(piece.content for piece in pieces),
            reasoning="".join(piece.reasoning for piece in pieces),
            tool_calls=tuple(delta for piece in pieces for delta in piece.tool_calls),
            token_id=chunk.token_id,
            logprob=chunk.logprob,
            finish_reason="tool_calls" if wants_calls else chunk.finish_reason,
            stop_reason=chunk.stop_reason,
            usage=chunk.usage and replace(chunk.usage, reasoning_tokens=self._reasoning_tokens),
            timing=chunk.timing,
        )
        self._read_chunks.append(read)
        return read

    def result(self) -> ChatReply:
        """The whole answer, as chat gives it; otherwise as `Stream.result`."""
        for _ in self:
            pass
        _check_complete(self._read_chunks)
        return fold_chat(self._read_chunks)

    def close(self) -> None:
        """Cancel the request if it still runs."""
        self._chunks.close()

    def __repr__(self) -> str:
        return f"Chat{self._chunks!r}"


def _check_complete(chunks: Sequence[Chunk | ChatChunk]) -> None:
    if not chunks or chunks[-1].finish_reason is None:
        raise CancelledError("the stream was closed, or failed, before its end: it has no result")


def _state(chunks: Sequence[Chunk], closed: bool) -> str:
    if chunks and (finish_reason := chunks[-1].finish_reason) is not None:
        return f"{len(chunks)} tokens, finish_reason {finish_reason!r}"
    return f"{len(chunks)} tokens so far, {'closed' if closed else 'running'}"


def fold_completion(chunks: Iterable[Chunk], prompt_token_ids: Sequence[int]) -> Completion:
    """All chunks of a request as one Completion."""
    all_chunks = list(chunks)
    last = all_chunks[-1]
    assert last.finish_reason is not None and last.usage is not None and last.timing is not None
    logprobs = tuple(chunk.logprob for chunk in all_chunks if chunk.logprob is not None)
    return Completion(
        text="".join(chunk.text for chunk in all_chunks),
        token_ids=tuple(chunk.token_id for chunk in all_chunks),
        prompt_token_ids=tuple(prompt_token_ids),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        logprobs=logprobs or None,
        prompt_logprobs=last.prompt_logprobs,
        usage=last.usage,
        timing=last.timing,
    )


def fold_chat(chunks: Iterable[ChatChunk]) -> ChatReply:
    """All chunks of an answer as one ChatReply."""
    all_chunks = list(chunks)
    last = all_chunks[-1]
    assert last.finish_reason is not None and last.usage is not None and last.timing is not None
    logprobs = tuple(chunk.logprob for chunk in all_chunks if chunk.logprob is not None)
    return ChatReply(
        content="".join(chunk.content for chunk in all_chunks),
        reasoning="".join(chunk.reasoning for chunk in all_chunks) or None,
        tool_calls=_fold_calls(all_chunks),
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason,
        logprobs=logprobs or None,
        usage=last.usage,
        timing=last.timing,
    )


def _fold_calls(chunks: Iterable[ChatChunk]) -> tuple[ToolCall, ...]:
    heads: list[tuple[str, str]] = []
    arguments: list[list[str]] = []
    for delta in (delta for chunk in chunks for delta in chunk.tool_calls):
        if delta.id is not None and delta.name is not None:
            heads.append((delta.id, delta.name))
            arguments.append([])
        arguments[delta.index].append(delta.arguments)
    return tuple(
        ToolCall(id=id, name=name, arguments_json="".join(parts))
        for (id, name), parts in zip(heads, arguments, strict=True)
    )
