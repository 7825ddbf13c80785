"""lily-nano with the vocabulary of Qwen3.6-35B-A3B, for bench/overhead.py: its work in Python depends on little else.

The new tokens join two of lily-nano's, so texts are tokenised as by any byte-level BPE; their rows of the embedding and
the head repeat lily-nano's.

    python -m bench.overhead_model FOLDER      # writes FOLDER/lily-nano-248320 and prints it
"""

import argparse
import json
import shutil
import struct
from pathlib import Path
from typing import Any

from lily.hub import find_model

VOCAB_SIZE = 248_320
MAX_TOKEN_LENGTH = 24  # characters of the tokenizer's alphabet, one a byte


def make(parent: Path, vocab_size: int = VOCAB_SIZE) -> Path:
    """Write the checkpoint `parent`/lily-nano-`vocab_size` and return its folder."""
    source, folder = find_model("lily-nano"), parent / f"lily-nano-{vocab_size}"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "chat_template.jinja", folder / "chat_template.jinja")
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    first, shift = extend_tokenizer(tokenizer, vocab_size)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        values = move_ids(json.loads((source / name).read_text()), shift)
        if name == "config.json":
            values["text_config"]["vocab_size"] = vocab_size
        (folder / name).write_text(json.dumps(values))
    repeat_rows(source / "model.safetensors", folder / "model.safetensors", first, shift)
    return folder


def extend_tokenizer(tokenizer: dict[str, Any], vocab_size: int) -> tuple[int, int]:
    """Add tokens, each with its merge, the same ones everywhere; the added tokens, such as `<|im_end|>`, stay the last.

    Returns the first id of the added tokens, and how far all of them move.
    """
    vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    tokens, first = list(vocab), len(vocab)
    state = 1  # of a linear congruential generator
    for token_id in range(first, vocab_size - len(tokenizer["added_tokens"])):
        while True:
            pair = []
            for _ in range(2):
                state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
                pair.append(tokens[(state >> 33) % len(tokens)])
            token = "".join(pair)
            if len(token) <= MAX_TOKEN_LENGTH and token not in vocab:
                break
        vocab[token] = token_id
        merges.append(pair)
    for entry in tokenizer["added_tokens"]:
        entry["id"] += len(vocab) - first
    return first, len(vocab) - first


def move_ids(values: dict[str, Any], shift: int) -> dict[str, Any]:
    """The values of a configuration with the ids of its added tokens moved."""
    moved = {}
    for name, value in values.items():
        if isinstance(value, int) and name.endswith("_token_id"):
            value += shift
        elif isinstance(value, list) and name.endswith("_token_id"):
            value = [token_id + shift for token_id in value]
        elif name == "added_tokens_decoder":
            value = {str(int(token_id) + shift): token for token_id, token in value.items()}
        elif isinstance(value, dict):
            value = move_ids(value, shift)
        moved[name] = value
    return moved


def repeat_rows(source: Path, target: Path, first: int, count: int) -> None:
    """Copy a one-file checkpoint. Tables with a row per token get `count` more before row `first`, the first ones."""
    data = source.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    metadata, parts, end = header.pop("__metadata__"), [], 0
    for name, tensor in header.items():
        begin, stop = (8 + length + offset for offset in tensor["data_offsets"])
        part = data[begin:stop]
        if ".lm_head." in name or ".embed_tokens." in name:
            row_bytes = len(part) // tensor["shape"][0]
            old = part[: first * row_bytes]
            part = old + (old * (count // first + 1))[: count * row_bytes] + part[first * row_bytes :]
            tensor["shape"][0] += count
        parts.append(part)
        tensor["data_offsets"] = [end, end + len(part)]
        end += len(part)
    text = json.dumps({"__metadata__": metadata, **header}).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    print(make(parser.parse_args().folder))


if __name__ == "__main__":
    main()
