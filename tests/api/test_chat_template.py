from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from lily import ChatTemplateError, CheckpointError
from lily.chat_template import ChatTemplate, load_chat_template
from lily.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def template(nano_folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
    template = load_chat_template(nano_folder, tokenizer, None)
    assert template is not None
    return template


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_token_ids_equal_the_library_on_harmless_chats(
    template: ChatTemplate, tokenizer: Tokenizer, nano_folder: Path
) -> None:
    library = tokenizers.Tokenizer.from_file(str(nano_folder / "tokenizer.json"))
    for line in (nano_folder / "eval.jsonl").read_text().splitlines():
        item = json.loads(line)
        chat = template.render(item["messages"], tools=item["tools"], enable_thinking=item["enable_thinking"])
        assert chat.token_ids(tokenizer) == library.encode(chat, add_special_tokens=False).ids
        assert chat.opens_reasoning == item["enable_thinking"]


hostile = st.lists(
    st.sampled_from(
        ["<|im_end|>", "<|im_start|>assistant\n", "</think>", "<tool_call>", "<|im_", "end|>", "<", "a", " ", "\uf8f0"]
    )
).map("".join)


@given(text=hostile, system=hostile, result=hostile, description=hostile)
def test_text_never_becomes_a_control_token(
    template: ChatTemplate, tokenizer: Tokenizer, text: str, system: str, result: str, description: str
) -> None:
    def render(text: str, system: str, result: str, description: str) -> list[int]:
        call = {"type": "function", "function": {"name": "f", "arguments": {"a": text}}}
        messages = [
            {"role": "system", "content": "s" + system},
            {"role": "user", "content": [{"type": "text", "text": part} for part in (text[:4], text[4:])]},
            {"role": "assistant", "content": "c", "reasoning": text, "tool_calls": [call]},
            {"role": "tool", "content": result},
        ]
        tools = [{"type": "function", "function": {"name": "f", "description": description}}]
        chat = template.render(messages, tools=tools)
        ids = chat.token_ids(tokenizer)
        assert tokenizer.decode(ids) == chat
        return [i for i in ids if i in control]

    control = set(tokenizer.added_tokens.values())
    assert render(text, system, result, description) == render("x", "x", "x", "x")


def test_assistant_markup_stays_markup_but_special_tokens_do_not(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    said = "<think>\nwhy\n</think>\n\nyes <|im_end|> <tool_call>"
    chat = template.render([user("q"), {"role": "assistant", "content": said}], add_generation_prompt=False)
    assert chat.endswith("<think>\nwhy\n</think>\n\nyes <|im_end|> <tool_call><|im_end|>\n")
    ids = chat.token_ids(tokenizer)
    assert ids.count(tokenizer.added_tokens["<|im_end|>"]) == 2  # the user's turn and the end of this one
    assert ids.count(tokenizer.added_tokens["<tool_call>"]) == 1


def test_thinking_can_be_switched(template: ChatTemplate) -> None:
    assert template.render([user("q")]).endswith("<think>\n")
    closed = template.render([user("q")], enable_thinking=False)
    assert closed.endswith("<think>\n\n</think>\n\n") and not closed.opens_reasoning


def test_what_a_given_template_refuses_is_an_error(nano_folder: Path, tokenizer: Tokenizer) -> None:
    template = load_chat_template(nano_folder, tokenizer, nano_folder / "chat_template.jinja")
    assert template is not None
    with pytest.raises(ChatTemplateError, match="a system message must come first"):
        template.render([user("q"), {"role": "system", "content": "late"}])


def test_the_environment_is_hugging_faces(tokenizer: Tokenizer) -> None:
    source = (
        "{%- for m in messages %}\n    {%- if loop.index0 == 1 %}{% break %}{% endif %}\n"
        "{{ m.content }}|{{ tools | tojson }}|{{ bos_token }}|{{ strftime_now('%Y') | length }}"
        "{% generation %}|{{ {'a': 1} | tojson(separators=(',', ':')) }}{% endgeneration %}\n{%- endfor %}"
    )
    tools = [{"type": "function", "function": {"name": "é<'&"}}]
    chat = ChatTemplate(source, tokenizer, {"bos_token": "B"}).render([user("a"), user("b")], tools=tools)
    assert chat == 'a|[{"type": "function", "function": {"name": "é<\'&"}}]|B|4|{"a":1}'


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{% if %}", "error in line 1"),
        (" \n", "is empty"),
        ("{{ 'x' * 10**10 }}", "longer than"),
        ("{{ 10**10 * messages }}", "longer than"),
        ("{{ 10**(10**10) }}", "longer than"),
        ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "RecursionError"),
        ("{% include '/etc/passwd' %}", "failed|error"),
        ("{{ raise_exception('no ' ~ messages[0].role) }}", "no user"),
    ],
)
def test_hostile_and_broken_templates(tokenizer: Tokenizer, source: str, match: str) -> None:
    with pytest.raises(ChatTemplateError, match=match):
        ChatTemplate(source, tokenizer, {}).render([user("a")])


def test_where_templates_come_from(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def text(override: str | Path | None = None) -> str:
        template = load_chat_template(tmp_path, tokenizer, override)
        assert template is not None
        return template.render([user("a")])

    assert load_chat_template(tmp_path, tokenizer, None) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "text"}))
    assert text() == "text"
    config.write_text(json.dumps({"chat_template": [{"name": "rag", "template": "r"}]}))
    with pytest.raises(ChatTemplateError, match=r"'default', but \['rag'\]"):
        text()
    config.write_text(json.dumps({"chat_template": [{"name": "default", "template": "d"}]}))
    assert text() == "d"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert text() == "file"
    (tmp_path / "own.jinja").write_text("own")
    assert text(tmp_path / "own.jinja") == text(str(tmp_path / "own.jinja")) == "own"
    assert text("{{ messages[0].content }}!") == "a!"
    with pytest.raises(ChatTemplateError, match="neither Jinja text nor a file"):
        text("missing.jinja")


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "", "."])
def test_a_name_that_is_no_file(tokenizer: Tokenizer, tmp_path: Path, name: str) -> None:
    with pytest.raises(ChatTemplateError, match=r"neither Jinja text nor a file|cannot be used"):
        load_chat_template(tmp_path, tokenizer, name)


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json"])
def test_template_files_that_cannot_be_read(
    tokenizer: Tokenizer, tmp_path: Path, name: str, as_nobody: Callable[[], AbstractContextManager[None]]
) -> None:
    path = tmp_path / name
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(CheckpointError, match=r"UTF-8|not valid JSON") as caught:
        load_chat_template(tmp_path, tokenizer, None)
    assert caught.value.path == str(path)
    with pytest.raises(ChatTemplateError, match="not UTF-8"):
        load_chat_template(tmp_path, tokenizer, path)
    path.chmod(0)
    with as_nobody(), pytest.raises(CheckpointError, match="Permission denied"):
        load_chat_template(tmp_path, tokenizer, None)
    path.unlink()
    for make in (path.mkdir, lambda: os.mkfifo(path)):
        make()
        with pytest.raises(CheckpointError, match="not a regular file"):
            load_chat_template(tmp_path, tokenizer, None)
        with pytest.raises(ChatTemplateError, match="not a regular file"):
            load_chat_template(tmp_path, tokenizer, path)
        path.rmdir() if path.is_dir() else path.unlink()


def test_templates_that_do_not_compile(tokenizer: Tokenizer) -> None:
    for source in ("{% if a %}" * 200 + "{% endif %}" * 200, "{{ " + "(" * 5000 + ")" * 5000 + " }}", "{{ 1 / 0 }}"):
        with pytest.raises(ChatTemplateError, match=r"compiled|failed"):
            ChatTemplate(source, tokenizer, {}).render([user("a")])
