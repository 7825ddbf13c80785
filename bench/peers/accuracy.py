"""How far the logits of an arm are from the float64 reference (tests/oracles/forward.py) on the same weights and ids.

The reference computes with the dequantised numbers of the checkpoint, the same ones that the GGUF holds (to_gguf.py).
So this is the error of an engine's arithmetic: rounded or quantised activations and state, order of sums. The error
that 4-bit weights themselves bring is in none of the figures. The weights are random: the ratio of two engines means
something, the size of an error on a trained model may be another.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.oracles.forward import forward

F64 = NDArray[np.float64]


def positions(contexts: Sequence[int], steps: int) -> list[int]:
    """Positions of the rows that an arm writes: the last of the prompt and those of the steps, context by context."""
    return [position for context in contexts for position in range(context - 1, context + steps)]


def reference(folder: Path, token_ids: Sequence[int], wanted: Sequence[int]) -> dict[int, F64]:
    """Reference logits [vocab_size] at the `wanted` positions: one causal pass serves all contexts."""
    rows = sorted(set(wanted))
    logits = forward(folder, token_ids[: rows[-1] + 1], chunk_size=64, positions=rows)
    return dict(zip(rows, logits, strict=True))


def read_logits(path: Path, rows: int, vocab_size: int) -> NDArray[np.float32]:
    """The float32 rows that an arm wrote, [rows, vocab_size]. Raises ValueError for a file of another size."""
    values = np.fromfile(path, "<f4")
    if values.size != rows * vocab_size:
        raise ValueError(f"{path} holds {values.size} numbers, not {rows} rows of {vocab_size}")
    if not np.isfinite(values).all():
        raise ValueError(f"{path} holds numbers that are not finite")
    return values.reshape(rows, vocab_size)


def log_softmax(logits: F64) -> F64:
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def errors(got: NDArray[np.floating], expected: F64) -> dict[str, float]:
    """Of logits [rows, vocab_size]: RMS of the difference over RMS of the reference, KL(reference || arm) in nats per
    row, mean and median, and the share of rows with the same most likely token."""
    got = np.asarray(got, np.float64)
    p, q = log_softmax(expected), log_softmax(got)
    kl = (np.exp(p) * (p - q)).sum(-1)
    return {
        "rows": len(got),
        "relative_rms": float(np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean())),
        "kl_mean": float(kl.mean()),
        "kl_median": float(np.median(kl)),
        "same_top_token": float((got.argmax(-1) == expected.argmax(-1)).mean()),
    }


def by_stage(
    got: NDArray[np.float32], expected: dict[int, F64], contexts: Sequence[int], steps: int
) -> dict[str, dict[str, float]]:
    """`errors` of the rows after a prompt ("prefill") and of those after single tokens ("decode")."""
    wanted = positions(contexts, steps)
    rows = np.stack([expected[position] for position in wanted])
    after_prompt = np.arange(len(wanted)) % (1 + steps) == 0
    return {
        "prefill": errors(got[after_prompt], rows[after_prompt]),
        "decode": errors(got[~after_prompt], rows[~after_prompt]),
    }
