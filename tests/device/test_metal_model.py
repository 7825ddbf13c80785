"""lily-nano from the prompt to drawn tokens on the Metal device, against the CPU: every kernel of both programs."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from lily import _core
from lily.config import load_config
from tests.softmetal import control

if not control.is_present():
    pytest.skip("this build has no software Metal", allow_module_level=True)

PROMPT = ((37 * np.arange(70) + 11) % 512).astype(np.uint32)  # two chunks of the delta rule
MAX_ROW_ERROR = 0.004  # half mode with f16 operands: docs/design/model.md section 6


@pytest.fixture(autouse=True)
def clean_double() -> Iterator[None]:
    control.take_reports()
    yield
    control.configure()
    assert control.take_reports() == []


def run(folder: Path, device: str, debug: str = "") -> tuple[np.ndarray, list[int]]:  # type: ignore[type-arg]
    """Logits after the prompt and after each of two steps, and the greedily drawn tokens."""
    config = _core.ModelConfig(**load_config(folder).core_arguments())
    runtime = _core.Runtime(str(folder), config, device=device, memory_limit=1 << 30, max_context=512, debug=debug)
    timeline, greedy = runtime.timeline(), _core.Sampling()
    drawn = [runtime.prefill(timeline, PROMPT, wants_logits=True, sampling=greedy)]
    rows = [timeline.logits.copy()]
    for _ in range(2):
        drawn += runtime.decode([timeline], None, sampling=[greedy])
        rows.append(timeline.logits.copy())
    return np.array(rows), [result.token_id for result in drawn if result]


@pytest.mark.parametrize(("debug", "reverse"), [("", True), ("metal3", False)], ids=["Metal 4 reversed", "Metal 3"])
def test_lily_nano_agrees_with_the_cpu(lily_nano: Path, debug: str, reverse: bool) -> None:
    control.configure(reverse=reverse)
    expected, expected_ids = run(lily_nano, "cpu")
    rows, ids = run(lily_nano, "metal", debug)
    errors = np.sqrt(((rows - expected) ** 2).mean(-1) / (expected**2).mean(-1))
    assert errors.max() < MAX_ROW_ERROR
    assert ids == expected_ids
