"""Cases of sampling: a greedy row with a bias, one with a mask and penalties, one with top_k, top_p and min_p."""

from __future__ import annotations

from typing import Final

import numpy as np

from ..numbers import Numbers
from ..tables import BIAS_ENTRY, SAMPLE_BLOCK, SAMPLE_RESULT, SAMPLE_ROW, SMALL, Array, pack, step_rows, unwritten
from .case import ROWS, STEP, Case, Output

VOCAB: Final = 1500
SEEDS: Final = (1, 2, 3)


def sampling(n: Numbers) -> dict[str, Array]:
    rows = np.zeros(STEP, SAMPLE_ROW)
    rows["temperature"], rows["top_p"], rows["repetition_penalty"] = [0, 0.75, 0.5], [1, 1, 0.9], 1
    rows["top_k"], rows["min_p"] = [0, 0, 40], [0, 0, 0.05]
    rows["presence_penalty"][1], rows["frequency_penalty"][1], rows["repetition_penalty"][1] = 0.5, 0.25, 1.25
    rows["uses_counts"], rows["uses_mask"] = [0, 1, 0], [0, 1, 0]
    rows["seed_low"], rows["token_slot"] = SEEDS, [0, 1, 2]
    rows["num_logprobs"], rows["wants_logprob"] = [5, 0, 20], 1
    rows["bias_end"] = [2, 2, 2]
    rows["bias_begin"] = [0, 2, 2]
    counts = np.zeros((STEP, VOCAB), np.uint32)
    counts[1, 10:20], counts[1, 15:30] = 3, 1 << 31
    return {
        "step": step_rows(STEP, position=[10, 11, 12], timeline=[0, 1, 2], sample_row=[0, 1, 2], wants_logits=1),
        "rows": rows,
        "logits": n.uniform(STEP, VOCAB, low=-6, high=6),
        "counts": counts,
        "bias": np.array([(3, 9.0), (1200, -2.5), (0, 0)], BIAS_ENTRY),
        "mask": n.words(STEP * -(-VOCAB // 32)).astype(np.uint32).reshape(STEP, -1),
    }


def sample_scan(n: Numbers, kernel: str) -> Case:
    inputs = sampling(n)
    return Case(
        kernel=kernel, sizes=SMALL | {"vocab_size": VOCAB}, args=pack(STEP), extent=(VOCAB, STEP, 1),
        buffers=[*inputs.values(), unwritten(STEP, VOCAB), np.zeros((STEP, 2), SAMPLE_BLOCK)],
        outputs={"adjusted": Output(6, ROWS, np.s_[[0, 2]]), "raw_max": Output(7, 0, "raw_max"),
                 "raw_sum": Output(7, ROWS, "raw_sum"), "best": Output(7, ROWS, "best"),
                 "best_id": Output(7, 0, "best_id")},
        inputs=inputs,
    )  # fmt: skip


def sample_pick(n: Numbers, kernel: str) -> Case:
    inputs = sampling(n)
    logits, step, rows = inputs["logits"], inputs["step"], inputs["rows"]
    rows["uses_counts"] = rows["uses_mask"] = 0
    rows["bias_end"] = rows["bias_begin"] = 0
    adjusted, blocks = logits.copy(), np.zeros((STEP, 2), SAMPLE_BLOCK)
    for b in range(2):
        part = logits[:, 1024 * b : 1024 * (b + 1)]
        blocks["raw_max"][:, b] = blocks["best"][:, b] = part.max(axis=1)
        blocks["raw_sum"][:, b] = np.exp(part.astype(np.float64) - part.max(axis=1, keepdims=True)).sum(axis=1)
        blocks["best_id"][:, b] = 1024 * b + part.argmax(axis=1)
    return Case(
        kernel=kernel, sizes=SMALL | {"vocab_size": VOCAB}, args=pack(STEP), extent=(STEP, 1, 1),
        buffers=[step, rows, logits, adjusted, blocks, inputs["counts"], np.zeros(STEP, np.uint32),
                 np.zeros(STEP, SAMPLE_RESULT)],
        outputs={"tokens": Output(6, 0), "token_id": Output(7, 0, "token_id"), "logprob": Output(7, ROWS, "logprob"),
                 "num_logprobs": Output(7, 0, "num_logprobs"), "top_ids": Output(7, 0, "top_ids"),
                 "top_logprobs": Output(7, ROWS, "top_logprobs")},
        inputs=inputs,
    )  # fmt: skip
