from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from lily.detokenizer import Detokenizer
from lily.tokenizer import Tokenizer

BYTES = [bytes([n]) for n in range(256)]


def join(ids: list[int], table: list[bytes], stop: list[str]) -> str:
    text = Detokenizer(table, stop)
    out = []
    for token_id in ids:
        piece, match = text.push(token_id)
        out.append(piece)
        if match is not None:
            return "".join(out)
    return "".join(out) + text.flush()


@given(st.binary(max_size=60))
def test_hostile_bytes_decode_as_the_whole(data: bytes) -> None:
    assert join(list(data), BYTES, []) == data.decode(errors="replace")
    assert join(list(data), BYTES, ["\u2603", "zz"]) == data.split("\u2603".encode())[0].split(b"zz")[0].decode(
        errors="replace"
    )


@given(st.text(max_size=40), st.data())
def test_every_split_of_text_into_tokens_gives_the_text(text: str, data: st.DataObject) -> None:
    encoded = text.encode()
    borders = sorted(data.draw(st.sets(st.integers(0, len(encoded)))) | {0, len(encoded)})
    pieces = [encoded[a:b] for a, b in itertools.pairwise(borders)]
    assert join(list(range(len(pieces))), pieces, []) == text
    assert join(list(range(len(pieces))), pieces, ["never in it \x00\x01"]) == text or "\x00\x01" in text


def test_an_incomplete_character_is_shown_at_the_end() -> None:
    emoji = "🙂".encode()
    text = Detokenizer(BYTES)
    assert [text.push(byte)[0] for byte in emoji[:3]] == ["", "", ""]
    assert text.flush() == "\ufffd"
    text = Detokenizer(BYTES)
    assert [text.push(byte)[0] for byte in emoji] == ["", "", "", "🙂"]


def test_a_stop_string_is_kept_on_request() -> None:
    for include, expected in ((True, "abEND"), (False, "ab")):
        text = Detokenizer([b"abE", b"ND!"], ["END"], include_stop_str_in_output=include)
        assert text.push(0) == ("ab", None)
        assert text.push(1) == (expected[2:], "END")


def test_tokens_before_the_minimum_are_no_part_of_a_match() -> None:
    text = Detokenizer([b"EN", b"D", b"END"], ["END"])
    assert text.push(0, look_for_stop=False) == ("EN", None)
    assert text.push(1) == ("D", None)
    assert text.push(2) == ("", "END")


def test_hostile_text_through_the_real_vocabulary(tokenizer: Tokenizer) -> None:
    for text in (
        "naïve 日本語 👩‍👩‍👧‍👦 🇩🇪",
        "\x00\x7f\u200b\ufeff",
        "e\u0301",
        "<|im_end|><think>",
        "a" * 999,
        " \n\t\r\n ",
    ):
        ids = tokenizer.encode(text)
        normal = tokenizer.decode(ids)
        assert join(ids, tokenizer.id_to_bytes, []) == normal
        assert join(ids, tokenizer.id_to_bytes, ["\u2603"]) == normal
