from __future__ import annotations

import json
import os
import threading
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from lily import CheckpointError
from lily.tokenizer import Tokenizer


@given(text=st.text(max_size=60))
def test_text_comes_back_in_its_normal_form(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@pytest.fixture(scope="module")
def library(nano_folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(nano_folder / "tokenizer.json"))


@given(
    pieces=st.lists(
        st.one_of(st.text(max_size=8), st.sampled_from(["<|im_start|>", "<think>", "</think>", "<|", "\n"]))
    )
)
def test_ids_equal_the_library(tokenizer: Tokenizer, library: tokenizers.Tokenizer, pieces: list[str]) -> None:
    text = "".join(pieces)
    assert tokenizer.encode(text, allow_special=True) == library.encode(text, add_special_tokens=False).ids


def test_long_texts_equal_the_library_and_let_other_threads_run(
    tokenizer: Tokenizer, library: tokenizers.Tokenizer
) -> None:
    text = "The cat sat on 12 mats. Ünïcödé,\r\n\t and so on; " * 40_000
    turns, done = 0, threading.Event()

    def take_turns() -> None:
        nonlocal turns
        while not done.wait(0.001):
            turns += 1

    thread = threading.Thread(target=take_turns)
    thread.start()
    before = turns
    ids = tokenizer.encode(text)
    meanwhile = turns - before
    done.set()
    thread.join()
    assert ids == library.encode(text, add_special_tokens=False).ids
    assert meanwhile > 10


# Of these the normal form makes fewer bytes, or the tokenizer long tokens.
_SHRINKING = ["\u1fbe\u0308\u0301", "\u212a", "\u1fef", "e\u0301", "\u1100\u1161\u11a8", " the", "<|im_start|>", "é"]


@given(
    text=st.one_of(st.text(), st.text(alphabet=st.characters(max_codepoint=0x24FF)), st.sampled_from(_SHRINKING)),
    repeats=st.integers(1, 300),
)
def test_least_tokens_is_a_lower_bound(tokenizer: Tokenizer, text: str, repeats: int) -> None:
    least = tokenizer.least_tokens(text * repeats)
    assert least <= len(tokenizer.encode(text * repeats))
    assert least <= len(tokenizer.encode(text * repeats, allow_special=True))


def test_least_tokens_is_near_for_the_longest_tokens(tokenizer: Tokenizer) -> None:
    longest = max((token for token in tokenizer.id_to_bytes if token.isascii()), key=len).decode()
    found = len(tokenizer.encode(longest * 100_000, allow_special=True))
    assert found / 2 < tokenizer.least_tokens(longest * 100_000) <= found
    # Bytes beyond ASCII count for little, but they count.
    assert tokenizer.least_tokens("漢" * 2_000_000) > 40_000


def test_what_the_library_cannot_read_is_a_value_error(tokenizer: Tokenizer) -> None:
    """Its panics are no Exception: what catches exceptions would let them through."""
    with suppress(ValueError):
        tokenizer.encode(" " * 11_000_000)
    for text in ("\ud800", "a" * 100_000 + "\ud800"):
        with pytest.raises(ValueError, match="the text holds a lone surrogate"):
            tokenizer.encode(text)


def test_control_tokens_in_text_are_text(tokenizer: Tokenizer) -> None:
    text = "say <|im_end|> and </think> and <tool_call>"
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.added_tokens.values())
    assert tokenizer.decode(ids) == text
    control = set(tokenizer.encode(text, allow_special=True))
    assert {tokenizer.added_tokens[t] for t in ("<|im_end|>", "</think>", "<tool_call>")} <= control


def test_special_tokens_can_be_left_out_of_the_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<think>a<|im_end|>", allow_special=True)
    assert tokenizer.decode(ids) == "<think>a<|im_end|>"
    assert tokenizer.decode(ids, skip_special=True) == "<think>a"


def test_every_byte_has_a_token(tokenizer: Tokenizer) -> None:
    assert {bytes([n]) for n in range(256)} <= set(tokenizer.id_to_bytes)
    assert len(tokenizer.id_to_bytes) == 4096


def test_lone_surrogates_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"the text holds a lone surrogate \('\\ud800' at 1\).* contains$"):
        tokenizer.encode("a\ud800b")
    with pytest.raises(ValueError, match="stands for the byte 0xff of something that is not UTF-8"):
        tokenizer.encode("a\udcffb")


def test_ids_out_of_range_are_named(tokenizer: Tokenizer) -> None:
    for bad in (-1, 4096):
        with pytest.raises(ValueError, match=rf"token id {bad} at place 1 .*4095"):
            tokenizer.decode([5, bad])


def test_padding_ids_of_a_larger_embedding_decode_visibly(nano_folder: Path) -> None:
    assert Tokenizer(nano_folder, 5000).decode([4999]) == "\ufffd"


def test_a_tokenizer_larger_than_the_model_is_refused(nano_folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"ids up to 4095.*vocab_size is 4095") as caught:
        Tokenizer(nano_folder, 4095)
    assert caught.value.field == "vocab_size"


def test_missing_and_broken_files(tmp_path: Path, nano_folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        Tokenizer(tmp_path, 10)
    (tmp_path / "tokenizer.json").write_text((nano_folder / "tokenizer.json").read_text()[:500])
    with pytest.raises(CheckpointError, match="cannot be read"):
        Tokenizer(tmp_path, 4096)
    words = {"type": "WordLevel", "vocab": {"naïve—": 0}, "unk_token": "naïve—"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": words}))
    with pytest.raises(CheckpointError, match="not a byte-level BPE but WordLevel"):
        Tokenizer(tmp_path, 4096)
    (tmp_path / "tokenizer.json").unlink()
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(CheckpointError, match="not a regular file"):
        Tokenizer(tmp_path, 4096)


def edited(nano_folder: Path, to: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """A folder with the tokenizer of lily-nano after `edit(tokenizer.json)`."""
    value = json.loads((nano_folder / "tokenizer.json").read_text())
    edit(value)
    (to / "tokenizer.json").write_text(json.dumps(value))
    return to


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (lambda t: t["model"]["vocab"].pop("7"), "byte 0x37 of a text is lost"),
        (
            lambda t: t["model"]["vocab"].update({"8": t["model"]["vocab"]["7"]}),
            "byte 0x3[78] of a text is lost or changed|the id",
        ),
        (lambda t: t.update(pre_tokenizer=None), "is lost or changed"),
        (lambda t: t["model"].update(continuing_subword_prefix="##"), "cannot be read"),
        (
            lambda t: t["model"].update(type="WordPiece", unk_token="a", max_input_chars_per_word=9),
            "BPE but WordPiece|read",
        ),
        (lambda t: t["added_tokens"][0].update(lstrip=True), "lstrip"),
        (lambda t: t.pop("model"), "cannot be read"),
        (lambda t: t["model"].update(dropout=0.1), "dropout"),
        (lambda t: t.update(normalizer={"type": "Lowercase"}), "changes a text"),
        (lambda t: t["added_tokens"][0].update(id=5), "the id 5, .* it is 4070"),
        (lambda t: t["added_tokens"].pop(2), "follow those of the vocabulary"),
        (lambda t: t["model"]["merges"].append(["a", "no token"]), "out of vocabulary"),
        (lambda t: t["model"]["vocab"].update({"x": 2**32}), "cannot be read"),
        (lambda t: t["model"]["vocab"].update({"x": 2**31}), "vocab_size is 4096"),
    ],
)
def test_tokenizers_that_would_lose_text(
    nano_folder: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], object], match: str
) -> None:
    with pytest.raises(CheckpointError, match=match) as caught:
        Tokenizer(edited(nano_folder, tmp_path, edit), 4096)
    assert caught.value.path == str(tmp_path / "tokenizer.json")


def test_repr_counts(tokenizer: Tokenizer) -> None:
    assert repr(tokenizer) == "Tokenizer(4,096 tokens in 4,096 ids, 26 of them added, 14 special)"
