"""What tests of the runtime share: loading, steps, and the gate that decides whether logits are right."""

import os
from itertools import pairwise
from pathlib import Path

import numpy as np

from lily import _core
from lily.config import load_config
from tests.oracles.forward import Checkpoint, forward

FAMILIES = ("qwen3_5_moe", "qwen3_next")
LIMIT = 1 << 30
HAIR = 5e-4  # of router logits, whose spread is 1.5: three times the widest gap that rounding to halves has closed


def load(folder, **options):
    options = {"memory_limit": LIMIT, "max_context": 2048, "dtype": "float32"} | options
    if options.get("device") == "metal":  # on a busy machine software Metal is slow; that is no hang
        options["debug"] = ",".join(filter(None, (options.get("debug"), "timeout=600")))
    return _core.Runtime(str(folder), _core.ModelConfig(**load_config(folder).core_arguments()), **options)


def ids(*values):
    return np.array(values, np.uint32)


def prefill(runtime, timeline, token_ids, chunk_size=512):
    """Prefill in chunks; logits after the last token."""
    token_ids = np.asarray(token_ids, np.uint32)
    for begin in range(0, len(token_ids), chunk_size):
        last = begin + chunk_size >= len(token_ids)
        runtime.prefill(timeline, token_ids[begin : begin + chunk_size], wants_logits=last)
    return timeline.logits.copy()


def decode_rows(runtime, timeline, token_ids):
    rows = []
    for token_id in token_ids:
        runtime.decode([timeline], [int(token_id)])
        rows.append(timeline.logits.copy())
    return np.array(rows)


def check_gate(got, reference, *, ratio=1e-5, divergence=1e-9, gap=1e-3, outliers=0):
    """The end-to-end gate, of float32 mode unless given: the median over rows of the RMS ratio, the mean KL, and the
    top-1 where the reference's first two are further apart than `gap`. The `outliers` worst rows are left out."""
    got, reference = np.atleast_2d(got).astype(np.float64), np.atleast_2d(reference)
    assert np.isfinite(got).all()
    ratios = np.sqrt(((got - reference) ** 2).mean(-1) / (reference**2).mean(-1))
    judged = np.sort(ratios.argsort()[: len(ratios) - outliers])
    got, reference, ratios = got[judged], reference[judged], ratios[judged]
    assert np.median(ratios) <= ratio, f"RMS ratio {np.median(ratios):.2e}"

    def log_softmax(x):
        x = x - x.max(-1, keepdims=True)
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    p, q = log_softmax(reference), log_softmax(got)
    assert (np.exp(p) * (p - q)).sum(-1).mean() <= divergence
    top = np.sort(reference, -1)
    clear = top[:, -1] - top[:, -2] > gap
    assert (got.argmax(-1) == reference.argmax(-1))[clear].all()


def nearest_choice(folder, token_ids):
    """The least gap, over layers and tokens, of the last router logit that the reference chose before the next one."""
    checkpoint, gaps = Checkpoint(folder), []
    k = checkpoint.config["num_experts_per_tok"]

    def trace(name, values):
        if name.endswith(".router_logits"):
            ranked = -np.sort(-values, -1)
            gaps.append((ranked[:, k - 1] - ranked[:, k]).min())

    forward(checkpoint, token_ids, chunk_size=64, positions=[len(token_ids) - 1], trace=trace)
    return min(gaps)


def resident_bytes():
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def least_growth(readings):
    """From one reading to the next: a leak goes on, and what happens to a process once does not."""
    return min(later - earlier for earlier, later in pairwise(readings))
