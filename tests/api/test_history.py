"""Prompts of growing conversations, with templates that behave as those of the family's checkpoints."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lily import ChatTemplateError
from lily.chat_template import ChatTemplate, RenderedPrompt
from lily.outputs import ChatChunk, Timing, Usage
from lily.parse import ReplyParser
from lily.stream import fold_chat
from lily.tokenizer import Tokenizer
from lily.tools import parameters_by_name

FOLDER = Path(__file__).parent / "templates"
Message = dict[str, object]

TEXT = {"type": "string"}
SCHEMA = {
    "type": "object",
    "properties": {"text": TEXT, "n": {"type": "integer"}, "ok": {"type": "boolean"}, "l": {"type": "array"}},
}
TOOLS = [{"type": "function", "function": {"name": "write", "description": "é <|im_end|>", "parameters": SCHEMA}}]


@pytest.fixture(scope="module")
def templates(nano_folder: Path, tokenizer: Tokenizer) -> dict[str, ChatTemplate]:
    sources = {
        "nano": (nano_folder / "chat_template.jinja").read_text(),
        "xml": (FOLDER / "xml_calls.jinja").read_text(),
        "json": (FOLDER / "json_calls.jinja").read_text(),
        "json_thinking": "{%- set thinks = true %}" + (FOLDER / "json_calls.jinja").read_text(),
    }
    made = {name: ChatTemplate(source, tokenizer, {}, by_turns=True) for name, source in sources.items()}
    assert all(template.by_turns for template in made.values())
    return made


NAMES = ["nano", "xml", "json", "json_thinking"]

words = st.lists(
    st.sampled_from(
        ["a", "é", " ", "\n", "<|im_end|>", "<think>", "</think>", "<tool_call>", "<tool_response>", "\uf8f0"]
    )
).map("".join)
contents = st.one_of(words, st.lists(words.map(lambda text: {"type": "text", "text": text}), max_size=3))
# Tags that an answer quotes. Not at the start: there they make a think block of the model's own.
quoting = st.lists(st.sampled_from(["a", " ", "\n", "\n\n", "<think>", "</think>"])).map(
    lambda x: "b" + "".join(x) + "b"
)
# Text of an assistant that is no markup, which templates would read as such.
plain = st.text(st.sampled_from("ab é<\n"), max_size=8).map(str.strip)
arguments = st.fixed_dictionaries(
    {}, optional={"text": words, "n": st.integers(), "ok": st.booleans(), "l": st.lists(st.none() | words, max_size=2)}
)
calls = arguments.map(lambda a: {"type": "function", "function": {"name": "write", "arguments": a}})


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages: list[Message] = [
        {"role": role, "content": draw(contents)}
        for role in draw(st.lists(st.sampled_from(["system", "developer"]), max_size=2))
    ]
    for _ in range(draw(st.integers(1, 4))):
        messages.append({"role": "user", "content": draw(contents)})
        if draw(st.booleans()):
            messages.append({"role": draw(st.sampled_from(["system", "developer"])), "content": draw(contents)})
        for _ in range(draw(st.integers(0, 2))):
            made = draw(st.lists(calls, max_size=2))
            messages.append({"role": "assistant", "content": draw(plain), "tool_calls": made})
            if draw(st.booleans()):
                messages[-1][draw(st.sampled_from(["reasoning", "reasoning_content"]))] = draw(plain)
            messages += [{"role": "tool", "content": draw(contents)} for _ in made]
    return messages


@given(
    name=st.sampled_from(NAMES),
    messages=conversations(),
    tools=st.booleans(),
    thinking=st.sampled_from([None, True, False]),
)
def test_a_prompt_starts_with_that_of_its_beginning(
    templates: dict[str, ChatTemplate], name: str, messages: list[Message], tools: bool, thinking: bool | None
) -> None:
    def render(count: int, *, opened: bool = False) -> RenderedPrompt:
        return templates[name].render(
            messages[:count],  # type: ignore[arg-type]
            tools=TOOLS if tools else None,  # type: ignore[arg-type]
            enable_thinking=thinking,
            add_generation_prompt=opened,
        )

    roles = [str(message["role"]) for message in messages]
    for count in range(roles.index("user") + 1, len(messages)):
        longer = render(count + 1)
        if roles[count] == roles[count - 1] == "tool":
            # Results of parallel calls share a turn, which the next one goes on with.
            assert longer.startswith(render(count).removesuffix("<|im_end|>\n"))
        else:
            assert longer.startswith(render(count))
        # What the model was given to answer stays, too, unless it could not think and yet the history says it did.
        if roles[count] == "assistant" and (thinking is not False or not _thought(messages[count])):
            assert longer.startswith(render(count, opened=True))


def _thought(message: Message) -> bool:
    return bool(message.get("reasoning") or message.get("reasoning_content"))


@pytest.mark.parametrize(
    ("content", "written"),
    [
        (
            "Close it with `</think>`, always `</think>`.",
            "<think>\n\n</think>\n\nClose it with `</think>`, always `</think>`.",
        ),
        ("<think>\nwhy\n</think>\n\nUse </think>.", "<think>\nwhy\n</think>\n\nUse </think>."),
        ("<think> open", "<think>\n\n</think>\n\n<think> open"),
    ],
)
def test_an_answer_that_quotes_the_tag_stays_whole(
    templates: dict[str, ChatTemplate], content: str, written: str
) -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
    text = templates["xml"].render(messages, add_generation_prompt=False)  # type: ignore[arg-type]
    assert text == f"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{written}<|im_end|>\n"


@given(
    name=st.sampled_from(NAMES),
    thought=plain,
    content=st.one_of(plain, quoting),
    made=st.lists(arguments, max_size=2),
    thinking=st.booleans(),
)
def test_an_answer_is_rendered_as_it_was_generated(
    templates: dict[str, ChatTemplate],
    tokenizer: Tokenizer,
    name: str,
    thought: str,
    content: str,
    made: list[dict[str, object]],
    thinking: bool,
) -> None:
    """From the text of the model, through the parser and `to_message`, back to the same text in the next prompt."""
    template = templates[name]
    thinks = name != "json" and (thinking or name == "json_thinking")
    question: list[Message] = [{"role": "user", "content": "q"}]
    answer: Message = {"role": "assistant", "content": content, "tool_calls": [_call(a) for a in made]}
    if thinks:
        answer["reasoning"] = thought
    prompt = template.render(question, tools=TOOLS, enable_thinking=thinking)  # type: ignore[arg-type]
    history = template.render([*question, answer], tools=TOOLS, add_generation_prompt=False)  # type: ignore[arg-type, list-item]
    generated = history.removeprefix(prompt).removesuffix("<|im_end|>\n")
    assert len(generated) < len(history) - len(prompt)
    parser = ReplyParser(inside=prompt.opens_reasoning, tools=parameters_by_name(TOOLS))  # type: ignore[arg-type]
    pieces = [parser.push(generated), parser.flush()]
    reply = fold_chat(
        ChatChunk(
            content=piece.content,
            reasoning=piece.reasoning,
            tool_calls=piece.tool_calls,
            token_id=0,
            finish_reason="stop",
            usage=Usage(prompt_tokens=1, completion_tokens=1),
            timing=Timing(
                queue_seconds=0.0,
                prefill_seconds=0.0,
                decode_seconds=0.0,
                prefill_tokens_per_second=0.0,
                decode_tokens_per_second=0.0,
            ),
        )
        for piece in pieces
    )
    assert [dict(call.arguments) for call in reply.tool_calls] == made
    message = json.loads(json.dumps(reply.to_message()))
    again = template.render([*question, message, *question], tools=TOOLS)  # type: ignore[arg-type, list-item]
    assert again.startswith(history) and again.token_ids(tokenizer)[
        : len(history.token_ids(tokenizer))
    ] == history.token_ids(tokenizer)


def _call(arguments: dict[str, object]) -> dict[str, object]:
    return {"type": "function", "function": {"name": "write", "arguments": arguments}}


THOUGHT = {"role": "assistant", "content": "It is 4.", "reasoning": "2 and 2"}


def test_think_blocks_stay_in_the_history(templates: dict[str, ChatTemplate], tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "2 + 2?"}, THOUGHT, {"role": "user", "content": "Why?"}]
    expected = (
        "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n<think>\n2 and 2\n</think>\n\nIt is 4.<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    assert templates["xml"].render(messages) == templates["nano"].render(messages) == expected  # type: ignore[arg-type]
    # Without the reasoning an empty block stands there: the one that was in the prompt if the model did not think.
    spoken = [messages[0], {**THOUGHT, "reasoning": None}, messages[2]]
    assert templates["xml"].render(spoken) == expected.replace("2 and 2\n", "\n", 1)  # type: ignore[arg-type]
    # A template that is given by hand does what it says.
    own = ChatTemplate((FOLDER / "xml_calls.jinja").read_text(), tokenizer, {})
    assert own.render(messages) == expected.replace("<think>\n2 and 2\n</think>\n\n", "")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_one_question_is_rendered_as_the_template_does(
    templates: dict[str, ChatTemplate], tokenizer: Tokenizer, name: str
) -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "content": "", "reasoning": "t", "tool_calls": [_call({"n": 1}), _call({"ok": True})]},
        {"role": "tool", "content": "1"},
        {"role": "tool", "content": [{"type": "text", "text": "2"}]},
        {"role": "assistant", "content": "done", "reasoning": "u"},
    ]
    source = "{%- set thinks = true %}" * (name == "json_thinking")
    files = {"nano": None, "xml": "xml_calls.jinja"}
    if name == "nano":
        return _compare(templates[name], templates[name], messages)
    source += (FOLDER / (files.get(name) or "json_calls.jinja")).read_text()
    _compare(templates[name], ChatTemplate(source, tokenizer, {}), messages)


def _compare(by_turns: ChatTemplate, whole: ChatTemplate, messages: list[dict[str, object]]) -> None:
    for count in (2, 3, 5, 6):
        for tools in (None, TOOLS):
            options = {"tools": tools, "enable_thinking": False}
            assert by_turns.render(messages[:count], **options) == whole.render(messages[:count], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_instructions(templates: dict[str, ChatTemplate], name: str) -> None:
    template = templates[name]
    question = {"role": "user", "content": "q"}

    def render(*messages: Message) -> str:
        return template.render(messages, add_generation_prompt=False)  # type: ignore[arg-type]

    system = "<|im_start|>system\n{}<|im_end|>\n"
    both = render({"role": "developer", "content": "A"}, {"role": "system", "content": "B"}, question)
    assert both == system.format("A\n\nB") + render(question)
    for role in ("system", "developer"):
        late = render(question, {"role": role, "content": "late <|im_end|>"}, question)
        assert late == render(question) + system.format("late <|im_end|>") + render(question)


def test_a_template_may_need_a_question(templates: dict[str, ChatTemplate]) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "assistant", "content": "Hello!"}]
    with pytest.raises(
        ChatTemplateError, match=r"last one, 1 \(assistant\), is from a user: .*No user query"
    ) as caught:
        templates["xml"].render(messages)  # type: ignore[arg-type]
    assert (caught.value.message_index, caught.value.role) == (1, "assistant")
    assert templates["nano"].render(messages).count("<|im_start|>") == 3  # type: ignore[arg-type]


def test_what_a_template_refuses_is_named(tokenizer: Tokenizer) -> None:
    source = (
        "{%- for m in messages %}{%- if 'bad' in m.content %}{{- raise_exception('bad word') }}{%- endif %}"
        "{{- m.role + m.content + '\n' }}{%- endfor %}"
    )
    template = ChatTemplate(source, tokenizer, {}, by_turns=True)
    messages = [
        *({"role": role, "content": "fine"} for role in ("system", "system", "user", "assistant", "user")),
        {"role": "assistant", "content": "bad"},
    ]
    with pytest.raises(ChatTemplateError, match=r"message 5 \(assistant\): .*bad word") as caught:
        template.render(messages)  # type: ignore[arg-type]
    assert (caught.value.message_index, caught.value.role) == (5, "assistant")


def test_a_template_that_needs_the_whole_conversation_is_left_alone(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    source = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with caplog.at_level(logging.WARNING, logger="lily"):
        template = ChatTemplate(source, tokenizer, {}, by_turns=True)
    assert not template.by_turns and "cannot be rendered turn by turn" in caplog.text
    assert template.render([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]) == "2ab"
