"""Structured output: what a completion may say, as a grammar that gives the tokens allowed next (llguidance)."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import GrammarError
from .free_text import FreeText
from .json_schema import children, misread_number
from .params import SamplingParams
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import llguidance

Result = TypeVar("Result")

_MAX_COMPILED: Final = 32
_MAX_CHARACTERS: Final = 1 << 18  # of a schema or a Lark grammar
# The library calls itself for each rule that a rule names, some KB each, and a full stack ends the process. The
# shortest rules of the longest text need a third of the deep stack; below so many characters any stack is enough.
_DEEP_STACK_BYTES: Final = 1 << 28
_SHALLOW_CHARACTERS: Final = 1 << 12
_starting: Final = threading.Lock()  # the size of stacks is one for all threads that start
# Flexible, so that the model may print in its own way, but bounded: white space without end is no answer.
# No schema may ask the library to ignore what it cannot enforce.
_JSON_OPTIONS: Final = {
    "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}",
    "lenient": False,
    "coerce_one_of": False,
}
# A think block is free text up to its first closing tag; the answer stands after an empty line, as templates write it.
# A tool call in the block would be one outside of the grammar: the block has to be closed before it.
_AFTER_THINKING: Final = r"""start: think "\n\n" @answer
think[lazy]: THOUGHT
THOUGHT: /(?s:.*)<\/think>/ & ~/(?s:.*<tool_call>.*)/
"""
_THINKING_TAGS: Final = ("</think>", "<tool_call>")


def _library() -> ModuleType:
    try:
        import llguidance
    except ImportError:
        raise ImportError("structured output needs llguidance; install it with: pip install llguidance") from None
    return llguidance


class Grammar:
    """A checked grammar, as the text that llguidance reads.

    free_until: it starts with text that may say anything up to the first of these tags; empty if it does not.
    """

    def __init__(self, source: str, *, free_until: tuple[str, ...] = ()) -> None:
        """Raises GrammarError if `source` is malformed or uses something that cannot be enforced."""
        error = _on_deep_stack(source, lambda: _library().LLMatcher.validate_grammar(source))
        if error and not error.startswith("WARNING"):
            raise GrammarError(f"the grammar cannot be used: {_one_line(error)}")
        self.source = source
        self.free_until = free_until

    def after_thinking(self) -> Grammar:
        """The same behind a think block that is open already."""
        first, *named = json.loads(self.source)["grammars"]
        wrapper = {"lark_grammar": _AFTER_THINKING}
        grammars = [wrapper, {**first, "name": "answer"}, *named]
        return Grammar(json.dumps({"grammars": grammars}), free_until=_THINKING_TAGS)


def either(*grammars: Grammar) -> Grammar:
    """What one of the grammars allows."""
    bodies = [body for grammar in grammars for body in json.loads(grammar.source)["grammars"]]
    start = "start: " + " | ".join(f"@option_{index}" for index in range(len(bodies)))
    named = [{**body, "name": f"option_{index}"} for index, body in enumerate(bodies)]
    return Grammar(json.dumps({"grammars": [{"lark_grammar": start}, *named]}))


def lark_grammar(text: str, *, free_until: tuple[str, ...] = ()) -> Grammar:
    return Grammar(json.dumps({"grammars": [{"lark_grammar": text}]}), free_until=free_until)


def json_grammar(schema: str) -> Grammar:
    """The grammar of a JSON schema. Raises GrammarError with the path of the part that cannot be enforced."""
    source = json_source(schema)
    value = json.loads(schema)
    if (found := misread_number(value)) is not None:
        path, reason = found
        raise GrammarError(f"the JSON schema cannot be enforced at {path}: {reason}", schema_path=path)
    try:
        return Grammar(source)
    except GrammarError:
        pass
    reason = _schema_error(value)
    path = _failing_path(value, reason, "#", value)
    raise GrammarError(f"the JSON schema cannot be enforced at {path}: {_one_line(reason)}", schema_path=path)


def json_source(schema: str) -> str:
    """The same, not checked yet."""
    if len(schema) > _MAX_CHARACTERS:
        raise GrammarError(
            f"the JSON schema has {len(schema)} characters; at most {_MAX_CHARACTERS} are supported", schema_path="#"
        )
    try:
        return str(_library().LLMatcher.grammar_from_json_schema(schema, overrides=_JSON_OPTIONS))
    except ValueError as error:  # nested too deeply for the library
        raise GrammarError(f"the JSON schema cannot be read: {_one_line(str(error))}", schema_path="#") from None


def params_grammar(params: SamplingParams) -> Grammar | None:
    """The grammar that json_schema, regex, choice or grammar of `params` asks for, if any does."""
    if params.json_schema is not None:
        return json_grammar(str(params.json_schema))
    if params.regex is not None:
        return _regex_grammar(params.regex)
    if params.choice is not None:
        # One terminal: tens of thousands of texts are alternatives to the lexer, too many to the parser.
        return lark_grammar("start: CHOICE\nCHOICE: " + " | ".join(map(quoted, params.choice)))
    if params.grammar is None:
        return None
    if len(params.grammar) > _MAX_CHARACTERS:
        raise GrammarError(f"the grammar has {len(params.grammar)} characters; at most {_MAX_CHARACTERS} are supported")
    return lark_grammar(params.grammar)


def _regex_grammar(regex: str) -> Grammar:
    source = f"start: /{_library().regex_to_lark(regex)}/"
    try:
        return lark_grammar(source)
    except GrammarError as error:  # it ends with a quotation of `source`, which the caller never wrote
        reason = str(error).rpartition(" 1 | start: ")[0].rpartition("error: ")[2]
        raise GrammarError(f"the regex {regex!r} cannot be used: {reason or error}") from None


def quoted(text: str) -> str:
    """A literal of the Lark syntax."""
    return json.dumps(text, ensure_ascii=False)


@dataclass(slots=True)
class _Compiled:
    """A grammar for one tokenizer. masks: in its free text by half-written tag, and whether the text may end there."""

    start: llguidance.LLMatcher
    masks: dict[str, tuple[NDArray[np.uint32], bool]] = field(default_factory=dict)


class GrammarMatcher:
    """The state of one completion in its grammar. Used by one thread, the same for all matchers of a compiler.

    stop_token_ids: allowed exactly where the grammar may end, whatever text they have.
    end_token_id: the one that the library allows there.
    """

    def __init__(
        self,
        compiled: _Compiled,
        free_text: FreeText,
        tokenizer: Tokenizer,
        stop_token_ids: Collection[int],
        end_token_id: int,
    ) -> None:
        self._matcher = compiled.start.deep_copy()
        self._free_masks = compiled.masks
        self._free_text = free_text
        self._id_to_bytes = tokenizer.id_to_bytes
        self._words = np.zeros((tokenizer.vocab_size + 31) // 32, dtype=np.uint32)
        self._address = self._words.ctypes.data
        self._stops = _bits(stop_token_ids, len(self._words))
        self._others = ~_bits([*stop_token_ids, end_token_id], len(self._words))

    @property
    def finished(self) -> bool:
        """Whether nothing can follow but the end."""
        return bool(self._matcher.is_stopped())

    def mask(self) -> NDArray[np.uint32]:
        """Bits of the tokens that may come next, uint32 [ceil(vocab_size / 32)]; valid until the next call."""
        half_tag = self._free_text.half_tag
        known = None if half_tag is None else self._free_masks.get(half_tag)
        if known is None:
            # In free text nearly every token is allowed, and the library walks through all of them: milliseconds.
            self._matcher.unsafe_compute_mask_ptr(self._address, self._words.nbytes)
            self._check()
            may_end = self._matcher.is_accepting()
            if half_tag is not None:
                self._free_masks[half_tag] = (self._words.copy(), may_end)
            allowed = self._words
        else:
            allowed, may_end = known
        np.bitwise_and(allowed, self._others, out=self._words)
        if may_end:
            np.bitwise_or(self._words, self._stops, out=self._words)
        return self._words

    def push(self, token_id: int) -> None:
        """Go on by a token that the mask allows."""
        self._free_text.push(self._id_to_bytes[token_id])
        if not self._matcher.consume_token(token_id):
            self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(f"the grammar cannot go on: {_one_line(self._matcher.get_error())}")


class GrammarCompiler:
    """Compiles grammars for one tokenizer, and keeps the last ones. From any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # The library wants an end token; GrammarMatcher puts the request's own stop ids in its place.
        self._end_token_id = min(tokenizer.special_ids, default=tokenizer.vocab_size - 1)
        self._library_tokenizer: llguidance.LLTokenizer | None = None
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def matcher(self, grammar: Grammar, stop_token_ids: Collection[int]) -> GrammarMatcher:
        """A matcher at the grammar's start. Raises GrammarError if the grammar is too large."""
        with self._lock:
            compiled = self._compiled.pop(grammar.source, None) or self._compile(grammar.source)
            self._compiled[grammar.source] = compiled
            if len(self._compiled) > _MAX_COMPILED:
                self._compiled.popitem(last=False)
            free_text = FreeText(grammar.free_until)
            return GrammarMatcher(compiled, free_text, self._tokenizer, stop_token_ids, self._end_token_id)

    def _compile(self, source: str) -> _Compiled:
        if self._library_tokenizer is None:
            wrapper = _library().TokenizerWrapper(_TokenTable(self._tokenizer, self._end_token_id))
            self._library_tokenizer = _library().LLTokenizer(wrapper, n_vocab=self._tokenizer.vocab_size)
        limits = _library().LLParserLimits(verbose_errors=False)
        matcher: llguidance.LLMatcher = _on_deep_stack(
            source, lambda: _library().LLMatcher(self._library_tokenizer, source, log_level=0, limits=limits)
        )
        if matcher.is_error():
            raise GrammarError(f"the grammar cannot be compiled: {_one_line(matcher.get_error())}")
        return _Compiled(matcher)


class _TokenTable:
    """What llguidance asks of a tokenizer. Special tokens and ids without a token have no text that could match."""

    def __init__(self, tokenizer: Tokenizer, end_token_id: int) -> None:
        known = tokenizer.known_ids
        self._tokenizer = tokenizer
        # In a grammar these are plain text; markup such as `<tool_call>` is one token, as models write it.
        self._special = re.compile("|".join(map(re.escape, tokenizer.special_tokens)) or "(?!)")
        self.tokens = [text if i in known else b"" for i, text in enumerate(tokenizer.id_to_bytes)]
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.eos_token_id = end_token_id
        self.bos_token_id = None

    def __call__(self, text: str | bytes) -> list[int]:
        """The canonical tokens of a text that a grammar forces."""
        text = text if isinstance(text, str) else text.decode(errors="replace")
        ids: list[int] = []
        start = 0
        for special in self._special.finditer(text):
            ids += self._tokenizer.encode(text[start : special.start()], allow_special=True)
            ids += self._tokenizer.encode(special[0])
            start = special.end()
        return ids + self._tokenizer.encode(text[start:], allow_special=True)


def _bits(token_ids: Collection[int], num_words: int) -> NDArray[np.uint32]:
    words = np.zeros(num_words, dtype=np.uint32)
    for token_id in token_ids:
        words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words


def _schema_error(schema: object) -> str:
    source = json_source(json.dumps(schema))
    error = str(_on_deep_stack(source, lambda: _library().LLMatcher.validate_grammar(source)))
    return error.partition("\n  while processing")[0]  # the library's own address of a $ref


def _failing_path(schema: object, reason: str, path: str, root: Mapping[str, object]) -> str:
    """JSON pointer of the deepest part that is refused for the same reason as the whole."""
    shared = {word: root[word] for word in ("$defs", "definitions") if word in root}
    for child_path, child in children(schema):
        if isinstance(child, Mapping) and _schema_error({**shared, **child}) == reason:
            return _failing_path(child, reason, f"{path}/{child_path}", root)
    return path


def _on_deep_stack(source: str, work: Callable[[], Result]) -> Result:
    """The result of what the library does with a grammar, in a thread of its own if the grammar may be deep."""
    if len(source) <= _SHALLOW_CHARACTERS:
        return work()
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    with _starting:
        before = threading.stack_size(_DEEP_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _one_line(error: str) -> str:
    return " ".join(error.split())
