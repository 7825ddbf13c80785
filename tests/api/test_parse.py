from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from lily.parse import ReasoningParser

pieces = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "/", "think>", "a", " ", "\n", "</thi", "é"]), max_size=12
)


def parse(pieces: list[str], *, inside: bool) -> tuple[str, str]:
    parser = ReasoningParser(inside=inside)
    parts = [parser.push(piece) for piece in pieces] + [parser.flush()]
    return "".join(r for r, _ in parts), "".join(c for _, c in parts)


def whole(text: str, *, inside: bool) -> tuple[str, str]:
    """The definition, on the whole text."""
    if not inside:
        if not text.lstrip().startswith("<think>"):
            return "", text
        text = text.lstrip().removeprefix("<think>")
    reasoning, close, content = text.partition("</think>")
    return reasoning.strip(), content.lstrip() if close else ""


@given(pieces, st.booleans(), st.data())
@example([" ", "<think>", "\n", "a", "\n", "</think>", "\n", "b"], False, None)
def test_any_split_equals_the_definition(pieces: list[str], inside: bool, data: st.DataObject | None) -> None:
    text = "".join(pieces)
    expected = whole(text, inside=inside)
    assert parse(list(text), inside=inside) == expected
    assert parse([text], inside=inside) == expected
    assert parse(pieces, inside=inside) == expected
    if data is not None:
        borders = sorted(data.draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
        split = [text[a:b] for a, b in itertools.pairwise(borders)]
        assert parse(split, inside=inside) == expected


def test_content_streams_without_delay() -> None:
    parser = ReasoningParser(inside=False)
    assert parser.push("Hello") == ("", "Hello")
    assert parser.push(" </think> <think>") == ("", " </think> <think>")


def test_reasoning_streams_up_to_what_may_be_the_end() -> None:
    parser = ReasoningParser(inside=True)
    assert parser.push("\nabc \n</th") == ("abc", "")
    assert parser.push("ink") == ("", "")
    assert parser.push("x") == (" \n</thinkx", "")
    assert parser.push("</think>\n\nyes\n") == ("", "yes\n")
