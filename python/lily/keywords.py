"""Unknown keywords of public classes: a TypeError that names the nearest known one."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, Final, TypeVar, get_args, get_type_hints

Class = TypeVar("Class", bound=type)

# Other tools' words for the same thing; never accepted, only explained.
_RENAMED: Final = {
    "ctx_size": "max_context",
    "context_length": "max_context",
    "enable_prefix_caching": "prefix_cache_bytes",
    "enable_thinking": "reasoning",
    "eos_token_id": "stop_token_ids",
    "functions": "tools",
    "gpu_memory_utilization": "memory_limit",
    "input": "prompt",
    "input_ids": "token_ids",
    "max_completion_tokens": "max_tokens",
    "max_model_len": "max_context",
    "max_new_tokens": "max_tokens",
    "max_seq_len": "max_context",
    "model_path": "model",
    "n_ctx": "max_context",
    "n_predict": "max_tokens",
    "num_ctx": "max_context",
    "num_predict": "max_tokens",
    "reasoning_effort": "reasoning",
    "repeat_penalty": "repetition_penalty",
    "sampling_params": "params",
    "stop_strings": "stop",
    "temp": "temperature",
    "thinking": "reasoning",
    "torch_dtype": "dtype",
}
# For callables that do not know the keyword, because another one has it.
_ELSEWHERE: Final = {
    "reasoning": "use the keyword reasoning of chat",
    "tools": "use the keyword tools of chat",
    "response_format": "use json_schema here, or response_format of chat",
}


def names_nearest_keyword(cls: Class) -> Class:
    """Class decorator: its constructor and public methods refuse an unknown keyword by naming the nearest."""
    for name, function in list(vars(cls).items()):
        if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, _checked(function, cls.__name__ if name == "__init__" else f"{cls.__name__}.{name}"))
    return cls


def _checked(function: Callable[..., Any], shown: str) -> Callable[..., Any]:
    """`function` behind a look at the keywords of a call. A coroutine function stays one."""

    @cache
    def known() -> dict[str, None]:
        return dict.fromkeys(_keywords(function))

    def check(given: dict[str, object]) -> None:
        for name in given.keys() - known().keys():
            raise TypeError(f"{shown} has no keyword {name!r}; {_hint(name, list(known()))}")

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            check(kwargs)
            return await function(*args, **kwargs)

        return coroutine

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            check(kwargs)
        return function(*args, **kwargs)

    return checked


def _keywords(function: Callable[..., Any]) -> list[str]:
    """Names of the keywords that a method takes, those of an unpacked TypedDict among them."""
    names: list[str] = []
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            (options,) = get_args(get_type_hints(function)[name])
            names += get_type_hints(options)
        elif parameter.kind is not parameter.VAR_POSITIONAL:
            names.append(name)
    return names


def _hint(name: str, known: Sequence[str]) -> str:
    near = _RENAMED.get(name, name)
    if near not in known:
        if near in _ELSEWHERE:
            return _ELSEWHERE[near]
        near = next(iter(difflib.get_close_matches(name, known, n=1)), "")
    if near:
        return f"did you mean {near!r}?"
    return f"known are {', '.join(known)}" if known else "it takes none"
