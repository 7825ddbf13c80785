from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from lily.stop import StopMatcher

# A small alphabet makes overlaps and near misses frequent; one letter takes several bytes.
texts = st.text("abé", max_size=30)
stops = st.lists(st.text("abé", min_size=1, max_size=5), min_size=1, max_size=4)


def cut(text: bytes, stop: list[str]) -> tuple[bytes, str | None]:
    """The definition: at the first place where any stop string is complete, the longest of those that end there."""
    for end in range(len(text) + 1):
        ending = [s for s in stop if text[:end].endswith(s.encode())]
        if ending:
            longest = max(ending, key=lambda s: len(s.encode()))
            return text[: end - len(longest.encode())], longest
    return text, None


def run(pieces: list[bytes], stop: list[str]) -> tuple[bytes, str | None, list[bytes]]:
    matcher = StopMatcher(stop)
    shown = []
    for piece in pieces:
        released, match = matcher.push(piece)
        shown.append(released)
        if match is not None:
            return b"".join(shown), match, shown
    shown.append(matcher.flush())
    return b"".join(shown), None, shown


@given(texts, stops, st.data())
def test_any_split_equals_the_definition(text: str, stop: list[str], data: st.DataObject) -> None:
    encoded = text.encode()
    borders = sorted(data.draw(st.sets(st.integers(0, len(encoded)))) | {0, len(encoded)})
    pieces = [encoded[a:b] for a, b in itertools.pairwise(borders)]
    assert run(pieces, stop)[:2] == cut(encoded, stop)


def test_a_partial_match_is_held_back_and_released() -> None:
    matcher = StopMatcher(["STOP"])
    assert matcher.push(b"xST") == (b"x", None)
    assert matcher.push(b"O") == (b"", None)
    assert matcher.push(b"ST") == (b"STO", None)
    assert matcher.push(b"OP and more") == (b"", "STOP")


def test_nothing_is_held_longer_than_needed() -> None:
    matcher = StopMatcher(["aab"])
    assert matcher.push(b"aaa") == (b"a", None)
    assert matcher.flush() == b"aa"
    assert matcher.flush() == b""
