"""How tokens are chosen and when a completion ends: SamplingParams, and its merge with a checkpoint's defaults."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Final, TypedDict

from .errors import GrammarError
from .keywords import names_nearest_keyword
from .unicode import check_unicode

MAX_LOGPROBS: Final = 20
MAX_TOP_K: Final = 2**31 - 1
# The device's table of a request has room for 1024 entries; min_tokens and tool_choice write theirs into it too.
MAX_LOGIT_BIAS: Final = 900
MAX_STOP_TOKEN_IDS: Final = 100
MAX_STOP_LENGTH: Final = 4096  # characters; a stop string is compared at every token
# The range of normal float32 numbers, in which the device samples.
SMALLEST: Final = 1.2e-38
LARGEST: Final = 3.4e38
MAX_SEED: Final = 2**64 - 1


class SamplingOverrides(TypedDict, total=False):
    """The fields of SamplingParams as keywords of `generate`, `stream`, `chat` and `stream_chat`."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    seed: int | None
    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    logprobs: int | None
    prompt_logprobs: int | None
    thinking_token_budget: int | None
    json_schema: Mapping[str, object] | str | type | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None


@names_nearest_keyword
@dataclass(frozen=True, kw_only=True, repr=False)
class SamplingParams:
    """Sampling options under vLLM's names. None means: what the checkpoint's generation_config.json says.

    temperature: 0 is greedy. Where the checkpoint says nothing 1.0; greedy if it says `do_sample: false`.
    top_p (0, 1], top_k (0 or -1 is off), min_p [0, 1]: truncation of the distribution.
    presence_penalty, frequency_penalty [-2, 2]; repetition_penalty > 0 (1 is off, also counts the prompt).
    logit_bias: added to the logits of these token ids; -inf forbids a token.
    seed: 0 .. 2**64 - 1; None draws a fresh one for each request.
    max_tokens: None is the rest of the context. min_tokens: before, no stop id is drawn and no stop string looked for.
    stop: strings that end the text, found across token borders; not part of the text unless include_stop_str_in_output.
    stop_token_ids: further ids that end the completion. ignore_eos: the checkpoint's own stop ids do not.
    logprobs: None, 0 (the chosen token only) or up to 20 alternatives per token. prompt_logprobs: the same for the
    tokens of the prompt, which is then computed token by token.
    thinking_token_budget: tokens of a think block, after which it is closed with a short sentence.
    json_schema (a dict, JSON text or a pydantic class), regex, choice (a list of texts), grammar (Lark text): what the
    answer must be, from its first token or after the think block; one of them. Needs the package llguidance.
    json_schema becomes JSON text.

    Raises TypeError for an unknown name or a wrong type, ValueError for a value out of range.

    >>> SamplingParams(temperature=0.7, stop=["END"])
    SamplingParams(temperature=0.7, stop=('END',); others: the checkpoint's defaults)
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    thinking_token_budget: int | None = None
    json_schema: Mapping[str, object] | str | type | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        for name, limits in _NUMBERS.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _number(name, getattr(self, name), *limits))
        for name, (low, high) in _INTEGERS.items():
            if getattr(self, name) is not None or name == "min_tokens":
                object.__setattr__(self, name, _integer(name, getattr(self, name), low, high))
        _check_text("regex", self.regex)
        _check_text("grammar", self.grammar)
        _check_bool("ignore_eos", self.ignore_eos)
        _check_bool("include_stop_str_in_output", self.include_stop_str_in_output)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, more than max_tokens {self.max_tokens}")
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _stop_ids(self.stop_token_ids))
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", json_schema_text(self.json_schema))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        forms = [name for name in ("json_schema", "regex", "choice", "grammar") if getattr(self, name) is not None]
        if len(forms) > 1:
            raise ValueError(f"{' and '.join(forms)} are given; an answer can follow only one of them")

    def __repr__(self) -> str:
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"SamplingParams({', '.join(given)}{'; ' if given else ''}others: the checkpoint's defaults)"

    def merged(self, overrides: SamplingOverrides) -> SamplingParams:
        """A copy with these fields replaced. Raises TypeError for an unknown name."""
        return replace(self, **overrides) if overrides else self


def merged_params(params: SamplingParams | None, overrides: SamplingOverrides) -> SamplingParams:
    """What the arguments `params` and keywords of a call say together. Raises TypeError."""
    if params is None:
        params = SamplingParams()
    if not isinstance(params, SamplingParams):
        raise TypeError(f"params must be a SamplingParams, not {type(params).__name__}; its fields are keywords, too")
    return params.merged(overrides)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ResolvedSampling:
    """What a request really uses: `given` merged with the checkpoint's defaults. Greedy if temperature is 0."""

    given: SamplingParams
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float

    @property
    def has_penalties(self) -> bool:
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0

    def __repr__(self) -> str:
        names = [f.name for f in fields(self) if f.name != "given"]
        shown = (f"{n}={getattr(self, n)}{'' if getattr(self.given, n) is not None else ' (default)'}" for n in names)
        return f"ResolvedSampling({', '.join(shown)})"


def resolve(params: SamplingParams, defaults: Mapping[str, float | int]) -> ResolvedSampling:
    """Merge request and checkpoint: a field given in `params` wins, then generation_config.json, then "off"."""

    def pick(name: str, neutral: float) -> float:
        given = getattr(params, name)
        return float(given if given is not None else defaults.get(name, neutral))

    return ResolvedSampling(
        given=params,
        temperature=pick("temperature", 1.0),
        top_p=pick("top_p", 1.0),
        top_k=max(int(pick("top_k", 0)), 0),
        min_p=pick("min_p", 0.0),
        presence_penalty=pick("presence_penalty", 0.0),
        frequency_penalty=pick("frequency_penalty", 0.0),
        repetition_penalty=pick("repetition_penalty", 1.0),
    )


# Lowest and highest value, and whether the lowest is excluded.
_NUMBERS: Final[dict[str, tuple[float, float, bool]]] = {
    "temperature": (0.0, math.inf, False),
    "top_p": (0.0, 1.0, True),
    "min_p": (0.0, 1.0, False),
    "presence_penalty": (-2.0, 2.0, False),
    "frequency_penalty": (-2.0, 2.0, False),
    "repetition_penalty": (0.0, math.inf, True),
}
_INTEGERS: Final[dict[str, tuple[int, int | None]]] = {
    "top_k": (-1, MAX_TOP_K),
    "seed": (0, MAX_SEED),
    "max_tokens": (1, None),
    "min_tokens": (0, None),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
    "thinking_token_budget": (0, None),
}


def _number(name: str, value: object, low: float, high: float, low_open: bool) -> float:
    """The value as Python's own type: NumPy's numbers are welcome."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    value = value if isinstance(value, (int, float)) else float(value)
    too_small = low_open and value < low + SMALLEST
    if not abs(value) <= LARGEST or value < low or value > high or too_small:
        lowest = f"{'above' if low_open else 'at least'} {low:g}"
        highest = f" and at most {high:g}" if high < math.inf else ""
        raise ValueError(f"{name} is {value}; it must be finite in float32, {lowest}{highest}")
    return value


def _integer(name: str, value: object, low: int, high: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}")
    value = int(value)
    if value < low or (high is not None and value > high):
        raise ValueError(f"{name} is {value}; it must be at least {low}" + (f" and at most {high}" if high else ""))
    return value


def _check_bool(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {value!r}")


def _stop_strings(stop: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(stop, Iterable) or isinstance(stop, Mapping):
        raise TypeError(f"stop must be a string or a list of strings, not {type(stop).__name__}")
    strings = (stop,) if isinstance(stop, str) else tuple(stop)
    for string in strings:
        if not isinstance(string, str):
            raise TypeError(f"stop must be a string or a list of strings, not {string!r} in it")
        if len(string) > MAX_STOP_LENGTH:
            raise ValueError(
                f"stop holds {len(string)} characters in one string; at most {MAX_STOP_LENGTH} are supported"
            )
        if not string:
            raise ValueError("stop holds an empty string, which would end every completion at once")
        check_unicode("stop", string)
    return strings


def _stop_ids(stop_token_ids: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(stop_token_ids, Iterable):
        raise TypeError(f"stop_token_ids must be a list of token ids, not {type(stop_token_ids).__name__}")
    ids = tuple(_integer("each of stop_token_ids", token_id, 0) for token_id in stop_token_ids)
    if len(ids) > MAX_STOP_TOKEN_IDS:
        raise ValueError(f"stop_token_ids has {len(ids)} ids; at most {MAX_STOP_TOKEN_IDS} are supported")
    return ids


def _bias(logit_bias: Mapping[int, float]) -> dict[int, float]:
    if not isinstance(logit_bias, Mapping):
        raise TypeError(f"logit_bias must map token ids to numbers, not be a {type(logit_bias).__name__}")
    if len(logit_bias) > MAX_LOGIT_BIAS:
        raise ValueError(f"logit_bias has {len(logit_bias)} entries; at most {MAX_LOGIT_BIAS} are supported")
    for token_id, bias in logit_bias.items():
        _integer("each token id of logit_bias", token_id, 0)
        if isinstance(bias, bool) or not isinstance(bias, Real):
            raise TypeError(f"logit_bias of token {token_id} must be a number, not {type(bias).__name__}")
        if not (abs(bias) <= LARGEST or bias == -math.inf):
            raise ValueError(f"logit_bias of token {token_id} is {bias}; it must be finite in float32, or -inf")
    return {int(token_id): float(bias) for token_id, bias in logit_bias.items()}


def json_schema_text(schema: object) -> str:
    """JSON text of a schema given as a dict, as text or as a pydantic class.

    Raises GrammarError for what is not JSON or no schema, TypeError for another type.
    """
    to_schema = getattr(schema, "model_json_schema", None)
    if isinstance(schema, type) and callable(to_schema):
        schema = to_schema()
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise GrammarError(f"json_schema is not JSON: {error}") from None
        except RecursionError:
            raise GrammarError("json_schema is nested too deeply") from None
        if not isinstance(schema, dict):
            raise GrammarError(f"json_schema must hold an object, not a {type(schema).__name__}", schema_path="#")
    elif not isinstance(schema, Mapping):
        raise TypeError(f"json_schema must be a dict, JSON text or a pydantic class, not {schema!r}")
    try:
        text = json.dumps(dict(schema), allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError) as error:
        raise GrammarError(f"json_schema cannot be written as JSON: {error}") from None
    except RecursionError:
        raise GrammarError("json_schema is nested too deeply, or contains itself") from None
    return text


def _check_text(name: str, value: str | None) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {type(value).__name__}")
    if not value:
        raise ValueError(f"{name} is empty")
    check_unicode(name, value)


def _choices(choice: Sequence[str]) -> tuple[str, ...]:
    texts = tuple(choice) if isinstance(choice, Iterable) and not isinstance(choice, str) else ()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"choice must be a list of one or more texts that are not empty, not {choice!r}")
    for text in texts:
        check_unicode("choice", text)
    return texts
