"""Whether a device computes what it must: kernel cases against stored references, and a model against itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
from safetensors.numpy import load_file

from lily import _core
from lily.engine import Engine
from lily.errors import LilyError

from .cases import Case, all_cases
from .precision import ACTIVATIONS, halves_of, tolerance_of
from .tables import RMS_NORM_EPS, SMALL, Array, rms_ratio

REFERENCES: Final = Path(__file__).parent / "references.safetensors"
MAX_VALUES: Final = 512  # of an output that are stored, at even distances
_PROMPT_TOKENS: Final = 150  # two chunks of the delta rule and a part of a third
_DECODED: Final = 6
_MODEL_TOLERANCE: Final = {"float32": 1e-4, "float16": 0.004}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison: an output of a kernel, or of the model. error and tolerance: ratio of root mean squares.

    A tolerance of 0 asks for equal values; error is then the part of them that differ. problem: what was raised.
    """

    name: str
    error: float
    tolerance: float
    problem: str | None = None

    @property
    def passed(self) -> bool:
        return self.problem is None and self.error <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was compared on a device, and which of its kernels no case covers."""

    device: str
    checks: list[Check]
    kernels: int
    without_case: list[str]

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)


def run_cases(device: str, *, debug: str = "", on_case: Callable[[int], object] = lambda number: None) -> Report:
    """Replay every kernel case that `device` ("cpu", "metal", "cuda") has a kernel for.

    debug: switches of the device, as in LILY_CPU_DEBUG. on_case: called with the number of cases done.
    Raises DeviceError if there is no such device.
    """
    devices: dict[frozenset[tuple[str, int]], _core.Device] = {}

    def of_sizes(sizes: Mapping[str, int]) -> _core.Device:
        key = frozenset(sizes.items())
        if key not in devices:
            devices[key] = _core.Device(device, sizes=sizes, rms_norm_eps=RMS_NORM_EPS, debug=debug)
        return devices[key]

    names = set(of_sizes(SMALL).kernel_names())
    checks: list[Check] = []
    covered = set()
    for number, case in enumerate(all_cases(), 1):
        for activation in ACTIVATIONS:
            if (kernel := name_of(case, activation)) in names:
                covered.add(kernel)
                checks += run_case(of_sizes(case.sizes), case, activation)
        on_case(number)
    return Report(
        device=of_sizes(SMALL).description, checks=checks, kernels=len(names), without_case=sorted(names - covered)
    )


def name_of(case: Case, activation: str) -> str:
    """The kernel's name in a precision."""
    stem, _, tile = case.kernel.rpartition("_f32")
    return f"{stem}_{activation}{tile}"


def run_case(device: _core.Device, case: Case, activation: str) -> list[Check]:
    """Run one case in a precision that the device has, and compare each of its outputs."""
    kernel = name_of(case, activation)
    halves = halves_of(kernel, activation)
    bound = [values.astype(np.float16) if i in halves else values.copy() for i, values in enumerate(case.buffers)]
    try:
        # The binding takes plain numbers: table rows go as their bytes.
        plain = [values.view(np.uint8) if values.dtype.names else values for values in bound]
        device.run(kernel, case.args, plain, case.extent)
    except LilyError as raised:
        return [Check(name=kernel, error=float("inf"), tolerance=0, problem=str(raised))]
    results = [values.astype(np.float32) if i in halves else values for i, values in enumerate(bound)]
    references = _references()
    checks = []
    for name, output in case.outputs.items():
        got, reference = sampled(output.of(results)), references[f"{case.kernel}/{name}"]
        tolerance = tolerance_of(kernel, activation, output.tolerance)
        error = float(np.mean(got != reference)) if tolerance == 0 else rms_ratio(got, reference)
        checks.append(Check(name=f"{kernel}/{name}", error=error, tolerance=tolerance))
    return checks


def sampled(values: Array) -> Array:
    """At most MAX_VALUES of an array, at even distances: what is stored and compared."""
    flat = values.reshape(-1)
    if flat.size <= MAX_VALUES:
        return np.ascontiguousarray(flat)
    return np.ascontiguousarray(flat[np.arange(MAX_VALUES) * (flat.size - 1) // (MAX_VALUES - 1)])


def run_model(engine: Engine) -> list[Check]:
    """Run both programs of a loaded model: a prompt at once, and the same tokens one by one, give the same logits.

    With the sampling that follows, every kernel of both programs is looked up, compiled and run.
    """
    vocab_size = engine.config.vocab_size
    token_ids = [(37 * place + 11) % min(vocab_size, 1000) for place in range(_PROMPT_TOKENS)]
    at_once = _last_logits(engine, token_ids, 0)
    step_by_step = _last_logits(engine, token_ids, _DECODED)
    drawn = engine.generate(token_ids, max_tokens=_DECODED, seed=1, temperature=0.8, ignore_eos=True)
    again = engine.generate(token_ids, max_tokens=_DECODED, seed=1, temperature=0.8, ignore_eos=True)
    return [
        Check(
            name="model: prefill against decode",
            error=rms_ratio(step_by_step, at_once.astype(np.float64)),
            tolerance=_MODEL_TOLERANCE[engine.runtime.dtype],
        ),
        Check(
            name="model: a seed draws the same tokens again",
            error=float(np.mean(np.asarray(drawn.token_ids) != np.asarray(again.token_ids))),
            tolerance=0,
        ),
    ]


def _last_logits(engine: Engine, token_ids: list[int], num_decoded: int) -> Array:
    engine.prefix_cache.clear()
    with engine.session() as session:
        session.prefill(token_ids[: len(token_ids) - num_decoded])
        for token_id in token_ids[len(token_ids) - num_decoded :]:
            session.decode(token_id)
        return session.logits.copy()


def worst(checks: Iterable[Check]) -> Check | None:
    """The check with a tolerance that came nearest to it."""
    return max((c for c in checks if c.tolerance > 0), key=lambda c: c.error / c.tolerance, default=None)


@cache
def _references() -> dict[str, Array]:
    return load_file(REFERENCES)
