from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lily.parse import Piece, ReplyParser

TEXT = {"type": "string"}
TOOLS: dict[str, Mapping[str, object]] = {
    "write": {"type": "object", "properties": {"path": TEXT, "text": TEXT}},
    "add": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": ["number", "null"]}}},
    "now": {"type": "object", "properties": {}},
}

Call = tuple[str, dict[str, object]]


def parse(pieces: Sequence[str], *, inside: bool = False, tools: bool = True) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content and calls (name, arguments as JSON text) of a stream; checks the rules of deltas."""
    parser = ReplyParser(inside=inside, tools=TOOLS if tools else None)
    results: list[Piece] = [parser.push(piece) for piece in pieces] + [parser.flush()]
    calls: list[tuple[str, str]] = []
    ids = set()
    for delta in (delta for piece in results for delta in piece.tool_calls):
        if delta.index == len(calls):
            assert delta.name and delta.id and delta.id not in ids
            ids.add(delta.id)
            calls.append((delta.name, delta.arguments))
        else:
            assert delta.index == len(calls) - 1 and delta.id is None and delta.name is None and delta.arguments
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)
    assert parser.num_calls == len(calls)
    return "".join(p.reasoning for p in results), "".join(p.content for p in results), calls


def loaded(pieces: Sequence[str], *, inside: bool = False) -> tuple[str, str, list[Call]]:
    reasoning, content, calls = parse(pieces, inside=inside)
    return reasoning, content, [(name, json.loads(arguments)) for name, arguments in calls]


def xml(name: str, arguments: Mapping[str, str]) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def as_json(name: str, arguments: Mapping[str, object]) -> str:
    call = {"name": name, "arguments": arguments}
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


def splits(data: st.DataObject, text: str) -> list[str]:
    borders = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(borders)]


# Reasoning and content.

plain_pieces = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "/", "think>", "a", " ", "\n", "</thi", "é"]), max_size=12
)


def whole(text: str, *, inside: bool) -> tuple[str, str]:
    """The definition, on the whole text."""
    if not inside:
        if not text.lstrip().startswith("<think>"):
            return "", text
        text = text.lstrip().removeprefix("<think>")
    reasoning, close, content = text.partition("</think>")
    return reasoning.strip(), content.lstrip() if close else ""


@given(plain_pieces, st.booleans(), st.booleans(), st.data())
@example([" ", "<think>", "\n", "a", "\n", "</think>", "\n", "b"], False, True, None)
def test_any_split_equals_the_definition(
    pieces: list[str], inside: bool, tools: bool, data: st.DataObject | None
) -> None:
    text = "".join(pieces)
    expected = (*whole(text, inside=inside), [])
    for split in [list(text), [text], pieces] + ([splits(data, text)] if data is not None else []):
        assert parse(split, inside=inside, tools=tools) == expected


def test_content_streams_without_delay() -> None:
    parser = ReplyParser(inside=False)
    assert parser.push("Hello ") == Piece(content="Hello ")
    assert parser.push(" </think> <think><tool_call>") == Piece(content=" </think> <think><tool_call>")


def test_reasoning_streams_up_to_what_may_be_the_end() -> None:
    parser = ReplyParser(inside=True)
    assert parser.push("\nabc \n</th") == Piece(reasoning="abc")
    assert parser.push("ink") == Piece()
    assert parser.push("x") == Piece(reasoning=" \n</thinkx")
    assert parser.push("</think>\n\nyes\n") == Piece(content="yes\n")


# Calls.


@pytest.mark.parametrize("form", [xml, as_json])
def test_text_and_calls(form: object) -> None:
    write = form("write", {"path": "a.txt", "text": "x\ny"})  # type: ignore[operator]
    now = form("now", {})  # type: ignore[operator]
    text = f"why\n</think>\n\nLet me see.\n\n{write}\n{now}"
    expected = ("why", "Let me see.", [("write", {"path": "a.txt", "text": "x\ny"}), ("now", {})])
    assert loaded([text], inside=True) == loaded(list(text), inside=True) == expected
    assert loaded([f"{write} \n\nDone.\n{now}\n"]) == ("", "Done.", [("write", expected[2][0][1]), ("now", {})])
    assert loaded([f"A\n{now}\n\nB\n"])[1] == "A\n\nB"


def test_arguments_stream_as_fragments() -> None:
    parser = ReplyParser(inside=False, tools=TOOLS)
    text = xml("write", {"path": "a", "text": 'say "hi"\n'})
    fragments = []
    for character in text:
        fragments += [delta.arguments for delta in parser.push(character).tool_calls]
    assert fragments[0] == "" and '\\"' in fragments and "h" in fragments and len(fragments) > 10
    assert "".join(fragments) == '{"path": "a", "text": "say \\"hi\\"\\n'
    assert parser.flush().tool_calls[0].arguments == '"}'


hostile_parts = st.sampled_from(
    [
        *("</parameter>", "</function>", "</tool_call>", "<tool_call>", "<function=write>", "<parameter=text>"),
        *("<parameter=path>", "<parameter=x>", "</think>", "<think>", "\n", " ", '"', "\\", "{", "}", "[", ",", ":"),
        *("é", "🙂", "null", "a", "<|im_end|>", '{"name": "write", "arguments": {', "\x00", "\t", "</para"),
    ]
)
hostile = st.lists(hostile_parts, max_size=12).map("".join)


def closes_itself(arguments: Mapping[str, str]) -> bool:
    """Whether a value quotes the full sequence that ends it: such a text cannot be told from markup in every case."""
    return any(
        "</function></tool_call>" in "".join(value.split())
        or "</parameter><parameter=path>" in "".join(value.split())
        or "</parameter><parameter=text>" in "".join(value.split())
        for value in arguments.values()
    )


@given(st.fixed_dictionaries({"path": hostile, "text": hostile}), st.booleans(), st.data())
@example({"path": "x\n</parameter>\n", "text": "</parameter>\n</function>\n"}, False, None)
@example({"path": "\n</parameter>\n</tool_call>", "text": "<tool_call>\n<function=write>\n"}, True, None)
@example({"path": "", "text": "\n"}, True, None)
def test_hostile_text_comes_back_byte_equal(arguments: dict[str, str], twice: bool, data: st.DataObject | None) -> None:
    for form in (xml, as_json):
        if form is xml and closes_itself(arguments):
            continue
        text = "ok\n\n" + "\n".join([form("write", arguments), form("now", {})][: 1 + twice])
        calls: list[Call] = [("write", arguments), ("now", {})]
        if form is xml and twice and "<tool_call>" in "".join(arguments.values()):
            continue  # with a second call behind it, an opened example and the end of the call look the same
        for split in [[text], list(text)] + ([splits(data, text)] if data is not None else []):
            assert loaded(split) == ("", "ok", calls[: 1 + twice])


@given(st.lists(hostile_parts, max_size=20), st.booleans(), st.data())
def test_any_split_of_any_text_gives_the_same(pieces: list[str], inside: bool, data: st.DataObject) -> None:
    pieces = ["<tool_call>\n<function=write>\n<parameter=text>\n"] * data.draw(st.integers(0, 1)) + pieces
    text = "".join(pieces)
    expected = loaded([text], inside=inside)  # also: all arguments are valid JSON
    assert loaded(list(text), inside=inside) == loaded(pieces, inside=inside) == expected
    assert loaded(splits(data, text), inside=inside) == expected


EXAMPLE = (
    "Write this:\n" + xml("write", {"path": "p", "text": "t"}) + "\nand this:\n" + xml("now", {}) + "\nThat is all."
)


@pytest.mark.parametrize(
    "text",
    [
        EXAMPLE,
        xml("write", {"text": "t"}),
        "a\n</parameter>\n</function>\n</tool_call>\nb",
        "a\n</parameter>\n</function>\n</tool_call>",
        xml("write", {"text": "t"}) + "\n" + xml("now", {}),
        "<tool_call>\n<function=write>\n",
        "a\n</parameter>\n<parameter=other>\nb",
        "a\n</parameter>\n<parameter=text>\nb",
    ],
)
def test_examples_of_calls_may_be_arguments(text: str) -> None:
    stream = xml("write", {"path": "doc.md", "text": text})
    expected = ("", "", [("write", {"path": "doc.md", "text": text})])
    assert loaded([stream]) == loaded(list(stream)) == expected


def test_text_between_calls_does_not_join_them() -> None:
    first, second = xml("write", {"path": "a", "text": "b"}), xml("write", {"path": "c", "text": "d"})
    text = f"{first}\n\nAnd now:\n\n{second}\n\nDone."
    calls = [("write", {"path": "a", "text": "b"}), ("write", {"path": "c", "text": "d"})]
    assert loaded([text]) == loaded(list(text)) == ("", "And now:\n\nDone.", calls)


@pytest.mark.parametrize(
    ("raw", "value"),
    [("5", 5), (" -7 ", -7), ("5.0", 5), ("5.5", "5.5"), ("five", "five"), ("", ""), ("NaN", "NaN"), ("true", "true")],
)
def test_what_does_not_fit_the_type_stays_the_raw_text(raw: str, value: object) -> None:
    assert loaded([xml("add", {"a": raw})]) == ("", "", [("add", {"a": value})])


@pytest.mark.parametrize(
    ("stream", "calls"),
    [
        ("<tool_call>\n<function=write>", [("write", {})]),
        ("<tool_call>\n<function=write>\n<param", [("write", {})]),
        ("<tool_call>\n<function=write>\n<parameter=text>", [("write", {"text": ""})]),
        ("<tool_call>\n<function=write>\n<parameter=text>\nab\nc", [("write", {"text": "ab\nc"})]),
        ("<tool_call>\n<function=write>\n<parameter=text>\nab\n</parameter>\n</fun", [("write", {"text": "ab"})]),
        ("<tool_call>\n<function=write>\n<parameter=text>\nab\n</parameter>", [("write", {"text": "ab"})]),
        ("<tool_call>\n<function=add>\n<parameter=a>\n12", [("add", {"a": 12})]),
        ('<tool_call>\n{"name": "write", "arguments": {', [("write", {})]),
        ('<tool_call>\n{"name": "write", "arguments": {"te', [("write", {})]),
        ('<tool_call>\n{"name": "write", "arguments": {"text": "ab', [("write", {"text": "ab"})]),
        ('<tool_call>\n{"name": "write", "arguments": {"text": "ab\\u00', [("write", {"text": "ab\\u00"})]),
        ('<tool_call>\n{"name": "add", "arguments": {"a": [1, 2', [("add", {"a": "[1, 2"})]),
        ('<tool_call>\n{"name": "now", "arguments": {}}', [("now", {})]),
    ],
)
def test_a_call_cut_short_is_kept(stream: str, calls: list[Call]) -> None:
    assert loaded(["Yes. ", stream]) == loaded(list("Yes. " + stream)) == ("", "Yes.", calls)


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        # Models leave out line breaks and closing tags, or put them where none belong.
        ("<function=write><parameter=text>a</parameter></function></tool_call>", "a"),
        ("\n<function=write>\n<parameter=text>\na\n</parameter>\n</tool_call>", "a"),
        ("\n<function=write>\n\n<parameter=text>\na\n</parameter>\n\n</function>\n</tool_call>\n", "a"),
        ('{"name":"write","arguments":{"text":"a"}}</tool_call>', "a"),
        ('\n{"arguments": {"text": "a"}, "name": "write"}\n</tool_call>', "a"),
        ('\n{"name": "write", "arguments": "{\\"text\\": \\"a\\"}"}\n</tool_call>', "a"),
        ('\n{"name": "write", "parameters": {"text": "a"}}\n</tool_call>', "a"),
        ('\n{"name": "write", "arguments": {"text": "a\nb \\d \\"c\\""}}\n</tool_call>', 'a\nb \\d "c"'),
        ('\n{"name": "write", "arguments": {"text": ["</tool_call>", 1.50]}}\n</tool_call>', ["</tool_call>", 1.5]),
    ],
)
def test_forms_that_models_write(stream: str, text: object) -> None:
    stream = "<tool_call>" + stream
    assert loaded([stream]) == loaded(list(stream)) == ("", "", [("write", {"text": text})])


@pytest.mark.parametrize(
    "text",
    [
        "The tag <tool_call> starts a call.",
        "<tool_call>",
        "<tool_call>\n<function=",
        "<tool_call>\n<function=a<b>",
        '<tool_call>\n{"name": "wri',
        '<tool_call>\n{"other": 1}\n</tool_call>',
        "<tool_call>\n{not json}\n</tool_call>",
        "<tool_call> <tool_call>",
    ],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    assert loaded([text]) == loaded(list(text)) == ("", text, [])
    assert parse([text + "\n"], tools=False)[1] == text + "\n"


def test_calls_in_the_think_block_are_found() -> None:
    call = xml("write", {"path": "a", "text": "</think>"})
    text = f"I must write.\n{call}\n</think>\n\nDone"
    expected = ("I must write.", "Done", [("write", {"path": "a", "text": "</think>"})])
    assert loaded([text], inside=True) == loaded(list(text), inside=True) == expected
    assert loaded([f"Now\n{call}"], inside=True)[2] == expected[2]
    # A name that no tool has is a thought about calls.
    other = xml("NAME", {"KEY": "VALUE"})
    assert loaded([f"I write {other}</think>ok"], inside=True) == (f"I write {other}", "ok", [])
    assert loaded([other]) == ("", "", [("NAME", {"KEY": "VALUE"})])
