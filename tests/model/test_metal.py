"""The step program on the Metal device against the float64 reference: half mode's gates (docs/design/model.md, 6)."""

from collections.abc import Iterator

import numpy as np
import pytest

from lily import _core
from tests.model.metal import require_metal
from tests.model.support import FAMILIES, check_gate, decode_rows, load
from tests.oracles.forward import Checkpoint, forward
from tests.softmetal import control

ROW = {"nano": 0.002, "tiny": 0.004}  # median over the rows of the RMS ratio, float16
# Prompts 37 t + start in which no expert is chosen by a hair: another choice would be allowed, and would prove nothing.
STARTS = {"nano": {"qwen3_5_moe": 1, "qwen3_next": 1}, "tiny": {"qwen3_5_moe": 14, "qwen3_next": 12}}
LENGTHS = {"nano": 16, "tiny": 8}
GAP = 0.008  # between the last chosen and the first refused logit, in standard deviations of the row


@pytest.fixture(scope="module", autouse=True)
def metal():
    require_metal()


@pytest.fixture(autouse=True)
def clean_double() -> Iterator[None]:
    """Nothing is misused on the way."""
    if not control.is_present():
        yield
        return
    control.take_reports()
    yield
    control.configure()
    assert control.take_reports() == []


def metal_runtime(folder, **options):
    return load(folder, device="metal", dtype="float16", max_context=256, **options)


def check_decode(folder, prompt, gate):
    """The rows of `prompt`, token by token, against the float64 reference."""
    checkpoint, gaps = Checkpoint(folder), []
    chosen = checkpoint.config["num_experts_per_tok"]

    def trace(name, values):
        if name.endswith(".router_logits"):
            ordered = -np.sort(-values, -1)
            gaps.append((ordered[:, chosen - 1] - ordered[:, chosen]) / values.std(-1))

    reference = forward(checkpoint, prompt, trace=trace)
    assert np.min(gaps) > GAP
    runtime = metal_runtime(folder)
    rows = decode_rows(runtime, runtime.timeline(), prompt)
    check_gate(rows, reference, ratio=gate, divergence=10 * gate**2, gap=0.02)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("size", ["nano", "tiny"])
def test_decode_equals_the_reference(checkpoint, family, size):
    folder = checkpoint(family, size)
    vocab = Checkpoint(folder).config["vocab_size"]
    check_decode(folder, [(37 * t + STARTS[size][family]) % vocab for t in range(LENGTHS[size])], ROW[size])


def test_lily_nano_decodes_as_the_reference(lily_nano):
    check_decode(lily_nano, [37 * t + 1 for t in range(10)], 0.001)  # trained weights: nearer than random ones


@pytest.mark.parametrize(("debug", "reverse"), [("", True), ("metal3", False)], ids=["Metal 4 reversed", "Metal 3"])
def test_lily_nano_draws_the_tokens_of_the_cpu(lily_nano, debug, reverse):
    """From the prompt to drawn tokens, with every kernel of both programs, on both generations of the API."""
    if reverse and not control.is_present():
        pytest.skip("only software Metal can reverse the order")
    if reverse:
        control.configure(reverse=True)
    prompt, greedy = ((37 * np.arange(70) + 11) % 512).astype(np.uint32), _core.Sampling()
    rows, drawn = [], []
    for runtime in (load(lily_nano), metal_runtime(lily_nano, debug=debug)):
        timeline = runtime.timeline()
        results = [runtime.prefill(timeline, prompt, wants_logits=True, sampling=greedy)]
        logits = [timeline.logits.copy()]
        for _ in range(2):
            results += runtime.decode([timeline], None, sampling=[greedy])
            logits.append(timeline.logits.copy())
        rows.append(np.array(logits))
        drawn.append([result.token_id for result in results])
    assert np.sqrt(((rows[1] - rows[0]) ** 2).mean(-1) / (rows[0] ** 2).mean(-1)).max() < ROW["tiny"]
    assert drawn[1] == drawn[0]


def test_rows_of_a_step_decode_as_alone(checkpoint):
    """Three timelines in one step, at positions of their own, each as far as the others let it be."""
    runtime = metal_runtime(checkpoint("qwen3_next"))
    prompts = [[(37 * t + 11 * r) % 512 for t in range(3 + r)] for r in range(3)]
    alone, together = [], [runtime.timeline() for _ in prompts]
    for prompt, timeline in zip(prompts, together, strict=True):
        single = runtime.timeline()
        alone.append(decode_rows(runtime, single, [*prompt, 5, 6])[-1])
        decode_rows(runtime, timeline, prompt)
    for token in (5, 6):
        runtime.decode(together, [token] * 3)
    for timeline, reference in zip(together, alone, strict=True):
        ratio = np.sqrt(((timeline.logits - reference) ** 2).mean() / (reference**2).mean())
        assert ratio <= ROW["nano"]


def test_a_greedy_token_is_the_largest_logit_and_continues_on_the_device(checkpoint):
    runtime = metal_runtime(checkpoint("qwen3_5_moe"))
    timeline, greedy = runtime.timeline(), _core.Sampling(logprobs=3)
    tokens: list[int] | None = [7]
    for _ in range(4):
        (drawn,) = runtime.decode([timeline], tokens, sampling=[greedy])
        order = np.argsort(-timeline.logits, kind="stable")
        assert drawn.token_id == order[0]
        assert [token_id for token_id, _ in drawn.top_logprobs] == order[:3].tolist()
        tokens = None
