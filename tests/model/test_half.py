"""Half mode: both programs in dtype float16 against the float64 reference (docs/design/model.md, section 6)."""

import numpy as np
import pytest

from tests.model.support import FAMILIES, check_gate, decode_rows, load, prefill
from tests.oracles.forward import forward

TOKENS = (37 * np.arange(150) + 11) % 512
# Random weights put some routers of "tiny" near a tie: a row may choose another expert and mark later ones.
GATES = {
    "nano": {"ratio": 0.002, "divergence": 1e-5, "gap": 0.05},
    "tiny": {"ratio": 0.004, "divergence": 4e-4, "gap": 0.1, "outliers": 4},
}


@pytest.fixture(params=["cpu"])
def device(request):
    return request.param


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", GATES)
def test_decode_is_within_the_half_gate(checkpoint, device, family, size):
    folder = checkpoint(family, size)
    runtime = load(folder, device=device, dtype="float16")
    assert runtime.dtype == "float16"
    check_gate(
        decode_rows(runtime, runtime.timeline(), TOKENS[:64]), forward(folder, TOKENS[:64].tolist()), **GATES[size]
    )


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk_size", [1, 7, 64, 512])
def test_prefill_is_within_the_half_gate_however_it_is_cut(checkpoint, device, family, chunk_size):
    folder = checkpoint(family)
    runtime = load(folder, device=device, dtype="float16")
    reference = forward(folder, TOKENS.tolist())
    timeline = runtime.timeline()
    check_gate(prefill(runtime, timeline, TOKENS[:140], chunk_size), reference[139], **GATES["nano"])
    check_gate(decode_rows(runtime, timeline, TOKENS[140:]), reference[140:], **GATES["nano"])


def test_integer_operands_are_nearer_to_the_reference_than_halves_would_be(checkpoint):
    """16-bit integers round to 2^-16 of a row's largest element, halves to 2^-11 of each."""
    folder = checkpoint("qwen3_5_moe")
    runtime = load(folder, device="cpu", dtype="float16")
    check_gate(
        decode_rows(runtime, runtime.timeline(), TOKENS[:64]), forward(folder, TOKENS[:64].tolist()),
        ratio=5e-4, divergence=1e-6, gap=0.01,
    )  # fmt: skip


def test_bfloat16_is_refused_by_name(checkpoint):
    with pytest.raises(ValueError, match='"bfloat16" is not supported by the cpu device; use "float16"'):
        load(checkpoint("qwen3_5_moe"), dtype="bfloat16")
