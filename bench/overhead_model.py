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
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, folder / name)
    config = json.loads((source / "config.json").read_text())
    config["text_config"]["vocab_size"] = vocab_size
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    extend_tokenizer(tokenizer, vocab_size)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    repeat_rows(source / "model.safetensors", folder / "model.safetensors", vocab_size)
    return folder


def extend_tokenizer(tokenizer: dict[str, Any], vocab_size: int) -> None:
    """Add tokens, each with its merge, until the last id is vocab_size - 1; the same ones everywhere."""
    vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    tokens = list(vocab)
    state = 1  # of a linear congruential generator
    for token_id in range(max(entry["id"] for entry in tokenizer["added_tokens"]) + 1, vocab_size):
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


def repeat_rows(source: Path, target: Path, vocab_size: int) -> None:
    """Copy a checkpoint's only file; the tables with a row per token go on from their first row again."""
    data = source.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    metadata, parts, end = header.pop("__metadata__"), [], 0
    for name, tensor in header.items():
        begin, stop = (8 + length + offset for offset in tensor["data_offsets"])
        part = data[begin:stop]
        if ".lm_head." in name or ".embed_tokens." in name:
            row_bytes = len(part) // tensor["shape"][0]
            part = (part * (vocab_size // tensor["shape"][0] + 1))[: vocab_size * row_bytes]
            tensor["shape"][0] = vocab_size
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
