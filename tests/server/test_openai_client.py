"""The official client of OpenAI against a live server."""

from __future__ import annotations

import json
from typing import Any

import openai
import pydantic
import pytest
from openai import OpenAI

from .live import ANSWER, ASK, Live, saying

GREEDY: dict[str, Any] = {"model": "lily-nano", "temperature": 0}
NO_THINKING: dict[str, Any] = {"reasoning_effort": "none"}
SORT = [{"role": "user", "content": "Sort these words: tiger, apple, moon, wheel"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_order_status",
        "description": "Look up an order.",
        "parameters": {
            "type": "object",
            "properties": {"order_id": {"type": "string", "description": "Number of the order"}},
            "required": ["order_id"],
        },
    },
}
DOCUMENT = (
    "Answer only from the document. Reply in JSON.\n\n<document>\nName: Petra Moreau\n"
    "Email: petra.moreau@example.com\nCity: Rome\n\nThe archive updates a set of maps.\n</document>\n\n"
    "What is city of Petra Moreau?"
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": ["string", "null"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def test_models(openai_client: OpenAI) -> None:
    (model,) = openai_client.models.list()
    assert (model.id, model.object, model.owned_by) == ("lily-nano", "model", "lily")
    assert openai_client.models.retrieve("lily-nano").model_dump()["max_context"] == 2048
    with pytest.raises(openai.NotFoundError, match="'gpt-4' is not served here, but 'lily-nano'"):
        openai_client.models.retrieve("gpt-4")


def test_chat(openai_client: OpenAI) -> None:
    reply = openai_client.chat.completions.create(messages=ASK, **GREEDY, **NO_THINKING)  # type: ignore[call-overload]
    (choice,) = reply.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", ANSWER, "stop")
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    again = openai_client.chat.completions.create(messages=ASK, **GREEDY, **NO_THINKING)  # type: ignore[call-overload]
    assert again.usage.prompt_tokens_details.cached_tokens == reply.usage.prompt_tokens - 1
    assert again.choices[0].message.content == ANSWER and again.id != reply.id


def test_chat_streams_the_same(openai_client: OpenAI) -> None:
    stream = openai_client.chat.completions.create(  # type: ignore[call-overload]
        messages=ASK, stream=True, stream_options={"include_usage": True}, **GREEDY, **NO_THINKING
    )
    first, *chunks, last, usage = list(stream)
    assert first.choices[0].delta.role == "assistant" and first.choices[0].delta.content == ""
    assert "".join(chunk.choices[0].delta.content for chunk in chunks) == ANSWER
    assert (last.choices[0].finish_reason, last.choices[0].delta.content) == ("stop", None)
    assert usage.choices == [] and usage.usage.completion_tokens == len(chunks) + 1  # the stop token has no text
    assert {chunk.id for chunk in chunks} == {first.id}


def test_reasoning_is_apart_from_the_content(openai_client: OpenAI) -> None:
    whole = openai_client.chat.completions.create(messages=SORT, reasoning_effort="low", **GREEDY)  # type: ignore[call-overload]
    message = whole.choices[0].message.model_dump()
    assert (
        message["reasoning_content"] == message["reasoning"] == "The smallest item is apple and the largest is wheel."
    )
    assert message["content"] == "apple, moon, tiger, wheel"
    assert 0 < whole.usage.completion_tokens_details.reasoning_tokens < whole.usage.completion_tokens
    stream = openai_client.chat.completions.create(  # type: ignore[call-overload]
        messages=SORT, reasoning_effort="low", stream=True, **GREEDY
    )
    deltas = [chunk.choices[0].delta.model_dump() for chunk in stream]
    for name in ("reasoning_content", "reasoning", "content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == message[name]
    history = [*SORT, {"role": "assistant", **message}, {"role": "user", "content": "Who are you?"}]
    longer = openai_client.chat.completions.create(messages=history, **GREEDY, **NO_THINKING)  # type: ignore[call-overload]
    # The answer is the beginning of the next prompt: all of it but its end was computed.
    assert longer.usage.prompt_tokens_details.cached_tokens > whole.usage.total_tokens - 4


def test_thinking_can_be_turned_off_in_each_way(openai_client: OpenAI) -> None:
    for extra in (
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
    ):
        reply = openai_client.chat.completions.create(messages=SORT, extra_body=extra, **GREEDY)  # type: ignore[call-overload]
        assert reply.choices[0].message.content == "apple, moon, tiger, wheel"
        assert reply.usage.completion_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize("stream", [False, True])
def test_tools_over_several_rounds(openai_client: OpenAI, stream: bool) -> None:
    messages: list[Any] = []
    for order, state in (("65195", "shipped"), ("30417", "done")):
        messages.append({"role": "user", "content": f"Where is my order {order}?"})
        options: dict[str, Any] = {"tools": [TOOL], **GREEDY, **NO_THINKING}
        if stream:
            with openai_client.chat.completions.stream(messages=messages, **options) as events:
                message = events.get_final_completion().choices[0].message
        else:
            reply = openai_client.chat.completions.create(messages=messages, **options)
            assert reply.choices[0].finish_reason == "tool_calls"
            message = reply.choices[0].message
        (call,) = message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_order_status", {"order_id": order})
        messages.append({"role": "assistant", "content": message.content, "tool_calls": [call.model_dump()]})
        result = {"status": state, "id": int(order)}
        messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(result)})
        answer = openai_client.chat.completions.create(messages=messages, **options)
        assert state in answer.choices[0].message.content
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))


def test_deltas_of_tool_calls(live: Live, openai_client: OpenAI) -> None:
    text = (
        "Both.\n\n<tool_call>\n<function=get_order_status>\n<parameter=order_id>\n1\n</parameter>\n</function>\n</tool_call>"
        "\n<tool_call>\n<function=get_order_status>\n<parameter=order_id>\n2\n</parameter>\n</function>\n</tool_call>"
    )
    with saying(live, text):
        stream = openai_client.chat.completions.create(  # type: ignore[call-overload]
            messages=ASK, tools=[TOOL], stream=True, **GREEDY, **NO_THINKING
        )
        chunks = [chunk.choices[0] for chunk in stream]
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    for index in (0, 1):
        first, *rest = [call for call in calls if call.index == index]
        assert first.function.name == "get_order_status" and first.type == "function" and first.id
        assert all(call.id is None and call.function.name is None for call in rest)
        arguments = "".join(call.function.arguments or "" for call in [first, *rest])
        assert json.loads(arguments) == {"order_id": str(index + 1)}
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "Both."
    assert chunks[-1].finish_reason == "tool_calls"


def test_tool_choice_is_obeyed(openai_client: OpenAI) -> None:
    def ask(**options: Any) -> Any:
        options = {"messages": ASK, "tools": [TOOL], **GREEDY, **NO_THINKING, **options}
        return openai_client.chat.completions.create(**options).choices[0]

    assert ask(tool_choice="none").message.tool_calls is None
    for choice in ("required", {"type": "function", "function": {"name": "get_order_status"}}):
        chosen = ask(tool_choice=choice, parallel_tool_calls=False, max_tokens=64)
        assert [call.function.name for call in chosen.message.tool_calls] == ["get_order_status"]
    with pytest.raises(openai.BadRequestError, match="'fly'"):
        ask(tool_choice={"type": "function", "function": {"name": "fly"}})


@pytest.mark.parametrize("effort", ["none", "low"])
@pytest.mark.parametrize("stream", [False, True])
def test_structured_output(openai_client: OpenAI, effort: Any, stream: bool) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    options: dict[str, Any] = {
        "messages": [{"role": "user", "content": DOCUMENT}],
        "response_format": form,
        "extra_body": {"thinking_token_budget": 48} if effort == "low" else {},
        **GREEDY,
    }
    if effort == "low":
        options["extra_body"]["enable_thinking"] = True
    else:
        options["reasoning_effort"] = "none"
    if stream:
        deltas = [
            c.choices[0].delta.model_dump() for c in openai_client.chat.completions.create(stream=True, **options)
        ]
        content = "".join(delta.get("content") or "" for delta in deltas)
        reasoning = "".join(delta.get("reasoning") or "" for delta in deltas)
    else:
        message = openai_client.chat.completions.create(**options).choices[0].message.model_dump()
        content, reasoning = message["content"], message.get("reasoning") or ""
    assert json.loads(content) == {"city": "Rome"}
    assert "{" not in reasoning and (bool(reasoning) == (effort == "low"))


def test_parse_into_a_class(openai_client: OpenAI) -> None:
    class City(pydantic.BaseModel):
        city: str | None

    reply = openai_client.chat.completions.parse(
        messages=[{"role": "user", "content": DOCUMENT}], response_format=City, **GREEDY, **NO_THINKING
    )
    assert reply.choices[0].message.parsed == City(city="Rome")


def test_logprobs(openai_client: OpenAI) -> None:
    options: dict[str, Any] = {"messages": ASK, "logprobs": True, "top_logprobs": 3, **GREEDY, **NO_THINKING}
    entries = openai_client.chat.completions.create(**options).choices[0].logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode().startswith(ANSWER)
    for entry in entries:
        best = max(entry.top_logprobs, key=lambda top: top.logprob)
        assert len(entry.top_logprobs) == 3 and (best.token, best.logprob) == (entry.token, entry.logprob)
    chunks = list(openai_client.chat.completions.create(stream=True, **options))
    streamed = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert [entry.model_dump() for entry in streamed] == [entry.model_dump() for entry in entries]


def test_sampling_options_arrive(live: Live, openai_client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "lily-nano", "prompt": "Once", "max_tokens": 12}
    seeded = [openai_client.completions.create(seed=5, temperature=1.5, **options).choices[0].text for _ in range(2)]
    assert seeded[0] == seeded[1] == live.engine.generate("Once", seed=5, temperature=1.5, max_tokens=12).text
    banned = live.engine.generate("Once", temperature=0, max_tokens=1).token_ids[0]
    reply = openai_client.completions.create(temperature=0, logit_bias={str(banned): -100}, logprobs=0, **options)
    assert live.engine.tokenizer.decode([banned]) != reply.choices[0].logprobs.tokens[0]
    regex = {"extra_body": {"regex": r"\d{3}-\d{4}"}}
    assert len(openai_client.completions.create(temperature=0, **regex, **options).choices[0].text) == 8
    stopped = openai_client.chat.completions.create(messages=ASK, stop=[" small"], **GREEDY, **NO_THINKING)  # type: ignore[call-overload]
    assert stopped.choices[0].message.content == ANSWER.split(" small")[0]
    cut = openai_client.chat.completions.create(messages=ASK, max_completion_tokens=3, **GREEDY, **NO_THINKING)  # type: ignore[call-overload]
    assert (cut.choices[0].finish_reason, cut.usage.completion_tokens) == ("length", 3)


def test_completions(live: Live, openai_client: OpenAI) -> None:
    options: dict[str, Any] = {"max_tokens": 8, **GREEDY}
    expected = live.engine.generate("The first", temperature=0, max_tokens=8).text
    ids = live.engine.tokenize("The first")
    for prompt in ("The first", ids, ["The first"], [ids]):
        reply = openai_client.completions.create(prompt=prompt, **options)
        assert reply.choices[0].text == expected and reply.choices[0].finish_reason == "length"
    stream = openai_client.completions.create(prompt="The first", stream=True, **options)
    assert "".join(chunk.choices[0].text for chunk in stream) == expected
    stream = openai_client.completions.create(prompt="The first", stream=True, echo=True, **options)
    assert "".join(chunk.choices[0].text for chunk in stream) == "The first" + expected
    default = openai_client.completions.create(prompt="The first", **GREEDY)
    assert default.usage.completion_tokens == 16


def test_echo_scores_a_prompt(live: Live, openai_client: OpenAI) -> None:
    scored = openai_client.completions.create(prompt="The first", echo=True, max_tokens=0, logprobs=1, **GREEDY)
    (choice,) = scored.choices
    assert choice.text == "The first" and "".join(choice.logprobs.tokens) == "The first"
    assert scored.usage.completion_tokens == 0
    expected = live.engine.generate("The first", max_tokens=1, prompt_logprobs=0).prompt_logprobs
    assert choice.logprobs.token_logprobs == [None if entry is None else entry.logprob for entry in expected or ()]
    both = openai_client.completions.create(prompt="The first", echo=True, max_tokens=4, logprobs=0, **GREEDY)
    tokens, offsets = both.choices[0].logprobs.tokens, both.choices[0].logprobs.text_offset
    assert "".join(tokens) == both.choices[0].text
    assert offsets == [len("".join(tokens[:place])) for place in range(len(tokens))]


# Responses


def test_responses(openai_client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "lily-nano", "temperature": 0, "reasoning": {"effort": "none"}}
    response = openai_client.responses.create(input="Who are you?", **options)
    assert response.output_text == ANSWER and response.status == "completed"
    assert [item.type for item in response.output] == ["message"]
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    again = openai_client.responses.create(input=[{"role": "user", "content": "Who are you?"}], **options)
    assert again.usage.input_tokens_details.cached_tokens == response.usage.input_tokens - 1
    cut = openai_client.responses.create(input="Who are you?", max_output_tokens=3, **options)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_responses_stream_typed_events(openai_client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "lily-nano", "temperature": 0, "reasoning": {"effort": "low"}}
    text = "Sort these words: tiger, apple, moon, wheel"
    whole = openai_client.responses.create(input=text, **options)
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    events = list(openai_client.responses.create(input=text, stream=True, **options))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    for kind in ("reasoning_text.delta", "reasoning_text.done", "output_text.delta", "output_text.done"):
        assert f"response.{kind}" in kinds
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 2
    final = events[-1].response
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert deltas == final.output_text == whole.output_text == "apple, moon, tiger, wheel"
    assert final.output[0].content[0].text == whole.output[0].content[0].text
    with openai_client.responses.stream(input=text, **options) as stream:
        assert stream.get_final_response().output_text == whole.output_text


def test_responses_call_tools_over_several_rounds(openai_client: OpenAI) -> None:
    tool: Any = {"type": "function", **TOOL["function"], "strict": None}
    options: dict[str, Any] = {"model": "lily-nano", "temperature": 0, "tools": [tool], "reasoning": {"effort": "none"}}
    items: list[Any] = []
    for order, state in (("65195", "shipped"), ("30417", "done")):
        items.append({"role": "user", "content": f"Where is my order {order}?"})
        with openai_client.responses.stream(input=items, **options) as stream:
            response = stream.get_final_response()
        call = response.output[-1]
        assert (call.type, call.name, json.loads(call.arguments)) == (
            "function_call", "get_order_status", {"order_id": order},
        )  # fmt: skip
        items += [item.model_dump(exclude={"parsed_arguments"}) for item in response.output]
        result = json.dumps({"status": state, "id": int(order)})
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})
        answer = openai_client.responses.create(input=items, **options)
        assert state in answer.output_text
        assert answer.usage.input_tokens_details.cached_tokens > response.usage.input_tokens
        items += [item.model_dump() for item in answer.output]


def test_responses_structured_output(openai_client: OpenAI) -> None:
    form: Any = {"type": "json_schema", "name": "answer", "schema": SCHEMA}
    response = openai_client.responses.create(
        model="lily-nano", input=DOCUMENT, text={"format": form}, reasoning={"effort": "none"}, temperature=0
    )
    assert json.loads(response.output_text) == {"city": "Rome"}


def test_what_would_be_ignored_is_refused(openai_client: OpenAI) -> None:
    chat, responses = openai_client.chat.completions, openai_client.responses
    for refused in (
        lambda: chat.create(messages=ASK, n=2, **GREEDY),  # type: ignore[call-overload]
        lambda: chat.create(messages=ASK, modalities=["audio"], **GREEDY),  # type: ignore[call-overload]
        lambda: chat.create(messages=ASK, functions=[{"name": "f"}], **GREEDY),  # type: ignore[call-overload]
        lambda: chat.create(messages=ASK, extra_body={"guided_regex": "a"}, **GREEDY),  # type: ignore[call-overload]
        lambda: chat.create(messages=ASK, extra_body={"chat_template_kwargs": {"preserve_thinking": False}}, **GREEDY),  # type: ignore[call-overload]
        lambda: responses.create(input="x", model="lily-nano", previous_response_id="resp_1"),
        lambda: responses.create(input="x", model="lily-nano", truncation="auto"),
        lambda: responses.create(input="x", model="lily-nano", tools=[{"type": "web_search"}]),
        lambda: openai_client.completions.create(prompt=["a", "b"], **GREEDY),
        lambda: openai_client.completions.create(prompt="a", suffix="b", **GREEDY),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            refused()
        assert caught.value.code == "unsupported_parameter" and caught.value.param and caught.value.message


def test_errors_have_their_class(openai_client: OpenAI) -> None:
    chat = openai_client.chat.completions
    with pytest.raises(openai.BadRequestError) as caught:
        chat.create(messages=ASK, max_tokens=4096, **GREEDY)  # type: ignore[call-overload]
    assert caught.value.code == "context_length_exceeded" and "4096" in caught.value.message
    assert "2048" in caught.value.message and caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as missing:
        chat.create(messages=ASK, model="gpt-4")  # type: ignore[call-overload]
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="temperature") as wrong:
        chat.create(messages=ASK, model="lily-nano", temperature=-1)  # type: ignore[call-overload]
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as role:
        chat.create(messages=[*ASK, {"role": "robot", "content": "x"}], **GREEDY)  # type: ignore[call-overload]
    assert role.value.param == "messages[1]" and "robot" in role.value.message


def test_a_client_timeout_frees_the_engine(live: Live, openai_client: OpenAI) -> None:
    cancelled = live.metric("lily_cancelled_total")
    impatient = openai_client.with_options(timeout=openai.Timeout(300, read=0.3))
    with live.device_held(), pytest.raises(openai.APITimeoutError):
        impatient.chat.completions.create(messages=ASK, **GREEDY)  # type: ignore[call-overload]
    live.wait_until(lambda: live.metric("lily_cancelled_total") == cancelled + 1)
    live.wait_until_idle()
