"""How a checkpoint wants to be sampled: the token ids that end a generation, and the defaults of sampling."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import cast

from .fields import Fields, is_int, read_fields
from .params import SamplingParams

SAMPLING_DEFAULTS = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)


def stop_token_ids(folder: Path, top: Fields, text: Fields) -> tuple[int, ...]:
    """Union of eos_token_id of generation_config.json and config.json, and the id of the tokenizer's eos_token."""
    vocab_size = text.size("vocab_size")
    generation = read_fields(folder / "generation_config.json")
    ids: list[int] = []
    for fields in (generation, top, text):
        if fields is not None:
            ids += fields.token_ids("eos_token_id", vocab_size)
    ids += _eos_token_ids(folder, vocab_size)
    if not ids:
        top.refuse("eos_token_id", "a token id, here or in generation_config.json, or the tokenizer's eos_token")
    return tuple(dict.fromkeys(ids))


def _eos_token_ids(folder: Path, vocab_size: int) -> list[int]:
    """The id of tokenizer_config.json's eos_token, looked up among the added tokens; nothing when it names none."""
    tokenizer = read_fields(folder / "tokenizer_config.json")
    if tokenizer is None or not tokenizer.has("eos_token"):
        return []
    eos = tokenizer.values["eos_token"]
    token = eos.get("content") if isinstance(eos, dict) else eos
    if not isinstance(token, str):
        tokenizer.refuse("eos_token", "a token's text")
    for content, token_id in _added_tokens(folder, tokenizer):
        if content == token and is_int(token_id) and 0 <= token_id < vocab_size:
            return [token_id]
    tokenizer.refuse("eos_token", f"one of the added tokens, with an id below {vocab_size}")


def _added_tokens(folder: Path, tokenizer: Fields) -> Iterable[tuple[object, object]]:
    """(text, id) of the added tokens: of tokenizer_config.json, then of tokenizer.json, where newer files have them."""
    if tokenizer.has("added_tokens_decoder"):
        for key, entry in tokenizer.section("added_tokens_decoder").values.items():
            if isinstance(entry, dict) and key.isascii() and key.isdigit():
                yield entry.get("content"), int(key)
    full = read_fields(folder / "tokenizer.json")
    added = full.values.get("added_tokens") if full is not None else None
    for entry in added if isinstance(added, list) else []:
        if isinstance(entry, dict):
            yield entry.get("content"), entry.get("id")


def sampling_defaults(folder: Path) -> dict[str, float | int]:
    generation = read_fields(folder / "generation_config.json")
    if generation is None:
        return {}
    generation.require("do_sample", True, False)
    defaults: dict[str, float | int] = {}
    for name in SAMPLING_DEFAULTS:
        if not generation.has(name):
            continue
        value = generation.values[name]
        try:
            SamplingParams(**{name: value})  # type: ignore[arg-type]  # it checks the type
        except (TypeError, ValueError) as error:
            generation.refuse(name, str(error))
        defaults[name] = cast(float, value)
    if generation.values.get("do_sample") is False:
        defaults["temperature"] = 0.0  # greedy, whatever temperature stands beside it
    return defaults
