"""What the arms that run lily have in common: their options, a prompt that repeats itself, the line they end with."""

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence

from lily.cli.bench import prompt_ids

prompt = prompt_ids  # of every arm: token ids that look random and are the same everywhere


def options(description: str) -> argparse.ArgumentParser:
    """A parser with the options of every arm."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", default="lily-nano", help="folder or Hugging Face id (default: %(default)s)")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--context", type=int, default=256, help="prompt tokens (default: %(default)s)")
    return parser


def report(token_ids: Sequence[int], metrics: Mapping[str, float]) -> None:
    """Print the result for bench/runner.py: the digest of what was computed, and what was measured."""
    print(json.dumps({"digest": digest(token_ids), "metrics": dict(metrics)}))


def digest(token_ids: Sequence[int]) -> str:
    """SHA-256 of token ids, in hexadecimal."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()
