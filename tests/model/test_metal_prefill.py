"""Prefill on the Metal device against the float64 reference: half mode's gates (docs/design/model.md, 6)."""

import numpy as np
import pytest

from tests.model.metal import require_metal
from tests.model.support import check_gate, decode_rows, load, prefill
from tests.oracles.forward import Checkpoint, forward

# Median over the rows of the RMS ratio, and mean divergence, float16.
GATES = {
    "nano": {"ratio": 0.002, "divergence": 2e-5, "gap": 0.05},
    "tiny": {"ratio": 0.004, "divergence": 5e-4, "gap": 0.1},
}
DECODED = 6  # rows that follow the prefill: they show what state it left


@pytest.fixture(scope="module", autouse=True)
def metal():
    require_metal()


def check_prefill(folder, prompt, gate, chunk_size):
    """`prompt` at once and in chunks that end anywhere; then decoding from where it left off."""
    reference = forward(folder, prompt)
    runtime = load(folder, device="metal", dtype="float16", max_context=256)
    whole = prefill(runtime, runtime.timeline(), prompt)
    check_gate(whole, reference[-1], **gate)

    timeline = runtime.timeline()
    first = prefill(runtime, timeline, prompt[:-DECODED], chunk_size)
    rows = np.vstack([first[None], decode_rows(runtime, timeline, prompt[-DECODED:])])
    check_gate(rows, reference[-1 - DECODED :], **gate)
    check_gate(whole, rows[-1].astype(np.float64), **gate)


@pytest.mark.parametrize(
    ("size", "family", "length"), [("nano", "qwen3_5_moe", 90), ("nano", "qwen3_next", 70), ("tiny", "qwen3_5_moe", 40)]
)
def test_prefill_equals_the_reference_and_decode(checkpoint, size, family, length):
    folder = checkpoint(family, size)
    vocab = Checkpoint(folder).config["vocab_size"]
    check_prefill(folder, [(37 * t + 11) % vocab for t in range(length)], GATES[size], chunk_size=33)


def test_lily_nano(lily_nano):
    check_prefill(lily_nano, [37 * t + 1 for t in range(20)], GATES["nano"], chunk_size=7)
