"""What the Python arms have in common: they read the first `context` ids of a file and decode the next ones.

All arms of bench/peers get the same ids, so all route to the same experts, and what they answer is never fed back: the
logits of the timed run can be compared with a reference row by row.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


class Timeline(Protocol):
    """One sequence in an engine. `prefill` and `decode` return when the logits of the last token are computed."""

    def prefill(self, token_ids: list[int]) -> object: ...
    def decode(self, token_id: int) -> None: ...
    def close(self) -> None: ...
    @property
    def logits(self) -> F32: ...


def options(description: str) -> argparse.ArgumentParser:
    """A parser with the options of every Python arm."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="folder of the checkpoint")
    parser.add_argument("--tokens", type=Path, required=True, help="file of int32 token ids")
    parser.add_argument("--logits", type=Path, help="gets the float32 rows of all contexts")
    parser.add_argument("--steps", type=int, required=True, help="tokens decoded after each context")
    parser.add_argument("--contexts", type=int, nargs="+", required=True, help="prompt lengths in tokens")
    return parser


def read_tokens(path: Path, contexts: Sequence[int], steps: int) -> list[int]:
    token_ids: list[int] = np.fromfile(path, "<i4").tolist()
    if len(token_ids) < max(contexts) + steps:
        raise ValueError(f"{path} has {len(token_ids)} ids, {max(contexts)} + {steps} are needed")
    return token_ids


def time_context(timeline: Timeline, token_ids: list[int], context: int, steps: int) -> tuple[float, float, list[F32]]:
    """Seconds of the prefill, seconds of all decode steps, and the 1 + `steps` rows of logits; closes the timeline."""
    start = time.perf_counter()
    timeline.prefill(token_ids[:context])
    prefill_seconds = time.perf_counter() - start
    rows = [np.array(timeline.logits, np.float32)]
    decode_seconds = 0.0
    for token_id in token_ids[context : context + steps]:
        start = time.perf_counter()
        timeline.decode(token_id)
        decode_seconds += time.perf_counter() - start
        rows.append(np.array(timeline.logits, np.float32))
    timeline.close()
    return prefill_seconds, decode_seconds, rows


def measure(arguments: argparse.Namespace, timeline: Callable[[], Timeline]) -> None:
    """Time all contexts, each after a warm-up of the same shape, and print the result for bench/runner.py.

    timeline: makes an empty one.
    """
    contexts, steps = arguments.contexts, arguments.steps
    token_ids = read_tokens(arguments.tokens, contexts, steps)
    metrics: dict[str, float] = {}
    digest = hashlib.sha256()
    file: BinaryIO | None = arguments.logits.open("wb") if arguments.logits else None
    for context in contexts:
        time_context(timeline(), token_ids[::-1], context, steps)
        prefill_seconds, decode_seconds, rows = time_context(timeline(), token_ids, context, steps)
        metrics[f"prefill_{context}_tokens_per_second"] = context / prefill_seconds
        metrics[f"decode_{context}_tokens_per_second"] = steps / decode_seconds
        for row in rows:
            digest.update(b"%d," % row.argmax())
            if file is not None:
                file.write(row.tobytes())
    if file is not None:
        file.close()
    print(json.dumps({"digest": digest.hexdigest(), "metrics": metrics}))
