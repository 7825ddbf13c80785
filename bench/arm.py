"""What the arms that run lily have in common: their options, a prompt that repeats itself, the line they end with."""

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence


def options(description: str) -> argparse.ArgumentParser:
    """A parser with the options of every arm."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", default="lily-nano", help="folder or Hugging Face id (default: %(default)s)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--context", type=int, default=256, help="prompt tokens (default: %(default)s)")
    return parser


def prompt(length: int, vocab_size: int) -> list[int]:
    """Token ids [length] that look random and are the same everywhere: the steps of a linear congruential generator.

    Ids in the last 1/16 of the vocabulary are left out: the special tokens are there.
    """
    state, token_ids = 1, []
    for _ in range(length):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        token_ids.append((state >> 33) % (vocab_size - vocab_size // 16))
    return token_ids


def report(token_ids: Sequence[int], metrics: Mapping[str, float]) -> None:
    """Print the result for bench/runner.py: the digest of what was computed, and what was measured."""
    print(json.dumps({"digest": digest(token_ids), "metrics": dict(metrics)}))


def digest(token_ids: Sequence[int]) -> str:
    """SHA-256 of token ids, in hexadecimal."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()
