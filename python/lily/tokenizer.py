"""Text to token ids and back, over the `tokenizers` library, with text and control tokens kept apart."""

from __future__ import annotations

import json
import operator
import re
import unicodedata
from collections.abc import Collection, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import tokenizers
from numpy.typing import NDArray

from .errors import CheckpointError
from .files import read_bytes, read_json
from .keywords import names_nearest_keyword
from .unicode import check_unicode

# Characters from which on a text is encoded as a batch of one. For that the library lets other threads run, and it is
# faster. Short ones are not: a process that has used its batches gets a warning from it at each fork.
LONG_TEXT: Final = 1 << 16
_COUNTED_CHARACTERS: Final = 1 << 20  # of a text whose bytes are counted at once
_MOST_COMPOSED: Final = 4  # bytes of UTF-8 beyond ASCII that the normal form NFC makes one byte of, at most
_UNKNOWN: Final = "\ufffd".encode()
# Text that holds every byte of UTF-8: all of ASCII, all following bytes, and all first bytes of two, three and four.
_PROBE: Final = "".join(
    map(chr, [*range(0xC0), *range(0x80, 0x800, 0x40), 0x800, *range(0x1000, 0x10000, 0x1000), 0x10000])
) + "".join(map(chr, range(0x40000, 0x110000, 0x40000)))


@names_nearest_keyword
class Tokenizer:
    """Byte-level BPE of one checkpoint.

    vocab_size: ids of the model, 0 .. vocab_size - 1; the last ones may have no token (padding of the embedding table).
    id_to_bytes: bytes of each id; U+FFFD for ids without a token. known_ids: those with one.
    added_tokens: text of each added token (`<|im_end|>`, `<think>`, ..) to its id.
    special_ids: the added tokens marked special; generated text leaves them out.
    """

    def __init__(self, folder: Path, vocab_size: int) -> None:
        path = folder / "tokenizer.json"
        full, listed = _load(path)
        size = max(full.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if size > vocab_size:
            raise CheckpointError(
                f"{path} has token ids up to {size - 1}, but the model's vocab_size is {vocab_size}: "
                "tokenizer and config.json are of different checkpoints",
                path=str(path),
                field="vocab_size",
                expected=f"at least {size}",
                found=str(vocab_size),
            )
        added = full.get_added_tokens_decoder()
        for token in added.values():
            if not token.content or token.lstrip or token.rstrip or token.single_word:
                raise CheckpointError(
                    f"{path}: the added token {token.content!r} is empty or uses lstrip, rstrip or single_word, "
                    "which no model of the family does",
                    path=str(path),
                    field="added_tokens",
                )
        self.vocab_size = vocab_size
        self.added_tokens = {token.content: token_id for token_id, token in added.items()}
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.special_tokens = frozenset(token.content for token in added.values() if token.special)
        # Longest first: the alternation then finds the longest token at a place, as the library does.
        by_length = sorted(self.added_tokens, key=len, reverse=True)
        self._added_pattern = re.compile("|".join(map(re.escape, by_length))) if by_length else None
        # The same model without added tokens: it reads "<|im_end|>" as ordinary text.
        self._plain = tokenizers.Tokenizer(full.model)
        if full.normalizer is not None:
            self._plain.normalizer = full.normalizer
        if full.pre_tokenizer is not None:
            self._plain.pre_tokenizer = full.pre_tokenizer
        vocab = self._plain.get_vocab()
        _check_bytes(path, self._plain)
        _check_added(path, full, listed)
        self.id_to_bytes = _id_to_bytes(path, vocab, self.added_tokens, vocab_size)
        self.known_ids = frozenset(vocab.values()) | frozenset(self.added_tokens.values())

    def encode(self, text: str, *, allow_special: bool = False, guard: str = "") -> list[int]:
        """Token ids of `text`. Added tokens in it are plain text, unless allow_special makes them control tokens.

        guard: a character that is left out after the control tokens were found; one that stands inside an added token
        keeps it plain text (chat_template.py). Raises ValueError for text that is not valid Unicode.
        """
        if not isinstance(text, str):
            raise TypeError(f"the text to encode must be a string, not {type(text).__name__}")
        if not allow_special or self._added_pattern is None:
            return self._encode_plain(text.replace(guard, ""))
        ids: list[int] = []
        start = 0
        for match in self._added_pattern.finditer(text):
            ids += self._encode_plain(text[start : match.start()].replace(guard, ""))
            ids.append(self.added_tokens[match.group()])
            start = match.end()
        return ids + self._encode_plain(text[start:].replace(guard, ""))

    def least_tokens(self, text: str) -> int:
        """A number of tokens that `encode` cannot be below, found without it: hundreds of times as fast.

        A token of n bytes gives each of them 1 / n of a token, and no byte gets less than from the longest token that
        holds it. The bytes of ASCII count that no normalizer joins with a mark behind them, all others a little.
        """
        total = 0.0
        for start in range(0, len(text), _COUNTED_CHARACTERS):
            part = text[start : start + _COUNTED_CHARACTERS].encode(errors="surrogatepass")
            codes = np.frombuffer(part, np.uint8)
            is_ascii = codes < 0x80
            stays = codes[:-1][is_ascii[:-1] & is_ascii[1:]]
            total += float(np.bincount(stays, minlength=256) @ self._least_shares)
            others = len(codes) - int(np.count_nonzero(is_ascii))
            total += others / _MOST_COMPOSED * float(self._least_shares.min())
        return int(total)

    @cached_property
    def _least_shares(self) -> NDArray[np.float64]:
        """Of a token, by byte [256]: one divided by the length of the longest token that holds the byte."""
        lengths = np.array([*map(len, self.id_to_bytes)])
        longest = np.ones(256, np.int64)
        np.maximum.at(longest, np.frombuffer(b"".join(self.id_to_bytes), np.uint8), np.repeat(lengths, lengths))
        return 1 / longest

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of token ids; bytes that are no character become U+FFFD. Raises ValueError for an id out of range."""
        ids = self.check_ids(token_ids)
        table, special = self.id_to_bytes, self.special_ids if skip_special else frozenset()
        return b"".join(table[i] for i in ids if i not in special).decode(errors="replace")

    def check_ids(self, token_ids: Iterable[int]) -> list[int]:
        """The ids as a list. Raises ValueError, naming the place, if one is outside 0 .. vocab_size - 1."""
        ids = list(map(operator.index, token_ids))
        if ids and (min(ids) < 0 or max(ids) >= self.vocab_size):
            place, bad = next((n, i) for n, i in enumerate(ids) if not 0 <= i < self.vocab_size)
            raise ValueError(f"token id {bad} at place {place} is outside 0 .. {self.vocab_size - 1} (vocab_size)")
        return ids

    def find_special(self, text: str) -> str | None:
        """The first special token written in `text`, if any."""
        return next((token for token in self.special_tokens if token in text), None)

    def text_table(self) -> list[bytes]:
        """id_to_bytes for generated text, where special tokens are not shown."""
        table = list(self.id_to_bytes)
        for token_id in self.special_ids:
            table[token_id] = b""
        return table

    def __repr__(self) -> str:
        return (
            f"Tokenizer({len(self.known_ids):,} tokens in {self.vocab_size:,} ids, "
            f"{len(self.added_tokens)} of them added, {len(self.special_ids)} special)"
        )

    def _encode_plain(self, text: str) -> list[int]:
        if not text:
            return []
        try:
            if len(text) < LONG_TEXT:
                encoding = self._plain.encode(text, add_special_tokens=False)
            else:
                (encoding,) = self._plain.encode_batch_fast([text], add_special_tokens=False)
        except (UnicodeEncodeError, TypeError):  # the library does not say where
            check_unicode("the text", text)
            raise
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # of the library: no Exception, and it has no public name
                raise
            raise ValueError(f"a text of {len(text)} characters cannot be made tokens of: {error}") from None
        ids: list[int] = encoding.ids
        return ids


def special_token_texts(folder: Path) -> dict[str, str]:
    """bos_token, eos_token, .. of tokenizer_config.json; empty without the file."""
    config = read_tokenizer_config(folder)
    out: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            out[name] = text
    return out


def read_tokenizer_config(folder: Path) -> dict[str, object]:
    """tokenizer_config.json as a dict; empty without the file. Raises CheckpointError if it is broken."""
    return read_json(folder / "tokenizer_config.json") or {}


def check_stop_ids(folder: Path, tokenizer: Tokenizer, stop_token_ids: Collection[int]) -> None:
    """Raises CheckpointError if the configuration of a checkpoint stops at ids that its tokenizer does not have."""
    unknown = [token_id for token_id in stop_token_ids if token_id not in tokenizer.known_ids]
    if unknown:
        path = folder / "tokenizer.json"
        raise CheckpointError(
            f"{path} has no token of the id {unknown[0]}, which config.json or generation_config.json names as "
            "eos_token_id: the files are of different checkpoints",
            path=str(path),
            field="eos_token_id",
            found=str(unknown[0]),
        )


def _load(path: Path) -> tuple[tokenizers.Tokenizer, list[dict[str, Any]]]:
    """What the library makes of the file, and the file's own added tokens."""
    content = read_bytes(path)
    if content is None:
        raise CheckpointError(f"{path} is missing: a checkpoint folder needs it next to config.json", path=str(path))
    try:
        full = tokenizers.Tokenizer.from_buffer(content)
        added = json.loads(content)["added_tokens"]
    except BaseException as error:
        raise _refusal(path, error) from None
    if not isinstance(full.model, tokenizers.models.BPE):
        found = type(full.model).__name__
        raise CheckpointError(
            f"{path} is not a byte-level BPE but {found}",
            path=str(path),
            field="model.type",
            expected="BPE",
            found=found,
        )
    if full.model.dropout:
        raise CheckpointError(
            f"{path} has dropout, so that a text would get other ids each time: set model.dropout to null",
            path=str(path),
            field="model.dropout",
            expected="null",
            found=str(full.model.dropout),
        )
    return full, added


def _refusal(path: Path, error: BaseException) -> BaseException:
    """What the library raised as a CheckpointError: it uses plain Exception, and panics are no Exception at all."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        return error
    return CheckpointError(f"{path} cannot be read: {error}", path=str(path))


def _check_bytes(path: Path, plain: tokenizers.Tokenizer) -> None:
    """Raises CheckpointError unless every byte of a text reaches some token: others would be lost without a word."""
    normal = plain.normalizer.normalize_str(_PROBE) if plain.normalizer is not None else _PROBE
    if normal not in (_PROBE, unicodedata.normalize("NFC", _PROBE)):
        raise CheckpointError(
            f"{path} changes a text before it is read: only the Unicode normal form NFC is supported",
            path=str(path),
            field="normalizer",
            expected="NFC or null",
        )
    alphabet = {byte: character for character, byte in _byte_alphabet().items()}
    expected = "".join(alphabet[byte] for byte in normal.encode())
    try:
        found = "".join(plain.encode(_PROBE, add_special_tokens=False).tokens)
    except BaseException as error:
        raise _refusal(path, error) from None
    if found != expected:
        place = next((n for n, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), len(found))
        byte = normal.encode()[min(place, len(expected) - 1)]
        raise CheckpointError(
            f"{path} is not a byte-level BPE: the byte 0x{byte:02x} of a text is lost or changed",
            path=str(path),
            expected="a token for every byte",
        )


def _check_added(path: Path, full: tokenizers.Tokenizer, listed: list[dict[str, Any]]) -> None:
    """Raises CheckpointError unless the library gives each added token the id that the file says."""
    for token in listed:  # the library counts on from the vocabulary, whatever id stands there
        if full.token_to_id(token["content"]) != token["id"]:
            raise CheckpointError(
                f"{path} gives the added token {token['content']!r} the id {token['id']}, but ids of added tokens "
                f"follow those of the vocabulary: it is {full.token_to_id(token['content'])}",
                path=str(path),
                field="added_tokens",
            )


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable character (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _id_to_bytes(path: Path, vocab: dict[str, int], added: dict[str, int], vocab_size: int) -> list[bytes]:
    alphabet = _byte_alphabet()
    table = [_UNKNOWN] * vocab_size
    named: dict[int, str] = {}
    for token, token_id in vocab.items():
        if token_id in named:
            raise CheckpointError(
                f"{path} gives two tokens the id {token_id}: {named[token_id]!r} and {token!r}",
                path=str(path),
                field="model.vocab",
            )
        named[token_id] = token
        try:
            table[token_id] = bytes(map(alphabet.__getitem__, token))
        except KeyError as error:
            if token in added:
                continue
            raise CheckpointError(
                f"{path} is not a byte-level BPE: token {token_id} ({token!r}) holds {error}", path=str(path)
            ) from None
    for token, token_id in added.items():
        table[token_id] = token.encode()
    return table
