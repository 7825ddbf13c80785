"""Every constructor and verb refuses a keyword that it does not have, and names the nearest of those that it has."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator

import pytest

import lily
from lily import Engine, PrefixCache, SamplingParams, Session
from lily.async_stream import AsyncStream
from lily.stream import ChatStream, Stream
from lily.tokenizer import Tokenizer

CLASSES = (Engine, SamplingParams, Session, PrefixCache, Stream, ChatStream, AsyncStream, Tokenizer)
SAMPLING = ["temperature", "max_tokens", "stop_token_ids"]
CHAT = [*SAMPLING, "tools", "tool_choice", "reasoning"]
# What a signature does not spell out: the keywords of an unpacked TypedDict.
UNPACKED = {
    **dict.fromkeys(("generate", "stream", "agenerate", "astream", "chat"), SAMPLING),
    **dict.fromkeys(("stream_chat", "achat", "astream_chat"), CHAT),
}


def callables() -> Iterator[Callable[..., object]]:
    for cls in CLASSES:
        for name, function in vars(cls).items():
            if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_")):
                yield function


def call(function: Callable[..., object], **keywords: object) -> None:
    result = function(object(), **keywords)  # refused before the object is looked at
    if inspect.iscoroutine(result):
        asyncio.run(result)


@pytest.mark.parametrize("function", list(callables()), ids=lambda function: function.__qualname__)
def test_an_unknown_keyword_names_the_nearest(function: Callable[..., object]) -> None:
    parameters = list(inspect.signature(function).parameters.values())[1:]
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    assert (function.__name__ in UNPACKED) == (len(names) < len(parameters))
    cls, _, method = function.__qualname__.partition(".")
    shown = cls if method == "__init__" else f"{cls}.{method}"
    for name in names + UNPACKED.get(method, []):
        wrong = name[:-1] + "_" + name[-1]
        with pytest.raises(TypeError, match=rf"^{shown} has no keyword '{wrong}'; did you mean '{name}'\?$"):
            call(function, **{wrong: 1})
    with pytest.raises(TypeError, match=rf"^{shown} has no keyword 'qqqq'; (known are .*{names[0]}|it takes none)"
                       if names else "it takes none$"):  # fmt: skip
        call(function, qqqq=1)


def test_no_public_class_was_forgotten() -> None:
    public = {value for value in vars(lily).values() if inspect.isclass(value) and value.__module__ != "builtins"}
    for cls in public - set(CLASSES):
        verbs = [name for name, value in vars(cls).items() if inspect.isfunction(value) and not name.startswith("_")]
        is_result = cls.__module__ == "lily.outputs"
        assert issubclass(cls, Exception) or (is_result and verbs in ([], ["to_message"])), cls


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: Engine("lily-nano", n_ctx=512), "Engine has no keyword 'n_ctx'; did you mean 'max_context'?"),  # type: ignore[call-arg]
        (lambda: Engine("lily-nano", max_model_len=512), "did you mean 'max_context'?"),  # type: ignore[call-arg]
        (lambda: Engine("lily-nano", torch_dtype="auto"), "did you mean 'dtype'?"),  # type: ignore[call-arg]
        (lambda: SamplingParams(thinking=True), "use the keyword reasoning of chat"),  # type: ignore[call-arg]
        (lambda: SamplingParams(response_format={}), "use json_schema here"),  # type: ignore[call-arg]
    ],
)
def test_the_words_of_other_tools(call: Callable[[], object], hint: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert hint in str(caught.value)


def test_a_chat_hears_of_its_own_keywords() -> None:
    with Engine("lily-nano", max_context=256, memory_limit="1GiB", progress=False) as engine:
        with pytest.raises(TypeError, match=r"Engine.chat has no .*'enable_thinking'; did you mean 'reasoning'\?"):
            engine.chat([{"role": "user", "content": "x"}], enable_thinking=False)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"Engine.generate has no keyword 'reasoning'; use .* of chat"):
            engine.generate("x", reasoning=False)  # type: ignore[call-overload]


def test_coroutine_functions_stay_what_they_are() -> None:
    assert inspect.iscoroutinefunction(Engine.agenerate)
    assert inspect.iscoroutinefunction(Engine.achat)
    assert not inspect.iscoroutinefunction(Engine.astream)
