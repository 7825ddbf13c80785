"""Arm: time that Python takes between two decode steps of one stream, without and with a grammar."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

from bench import arm
from lily import Engine, SamplingParams

SCHEMA = {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 1000}


class TimedRuntime:
    """A runtime that notes how long the device waits for the next step."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._end = 0.0
        self.gaps: list[float] = []
        self.max_chunk_tokens = runtime.max_chunk_tokens
        self.timeline = runtime.timeline
        self.prefill = runtime.prefill

    def decode(self, *arguments: Any, **options: Any) -> Sequence[Any]:
        start = time.perf_counter()
        if self._end:
            self.gaps.append(start - self._end)
        results: Sequence[Any] = self._runtime.decode(*arguments, **options)
        self._end = time.perf_counter()
        return results


def measure(engine: Engine, token_ids: Sequence[int], params: SamplingParams, warm_up: int) -> tuple[list[int], float]:
    """Token ids of a completion, and the median gap between its steps in seconds."""
    native, timed = engine.runtime, TimedRuntime(engine.runtime)
    engine._runtime = timed  # type: ignore[assignment]
    try:
        drawn = [chunk.token_id for chunk in engine.stream(token_ids, params)]
    finally:
        engine._runtime = native
    return drawn, statistics.median(timed.gaps[warm_up:])


def main() -> None:
    parser = arm.options(__doc__ or "")
    parser.add_argument("--tokens", type=int, default=256, help="steps that are timed (default: %(default)s)")
    options = parser.parse_args()

    warm_up = 8
    length = warm_up + options.tokens
    with Engine(options.model, device=options.device, max_context=options.context + length) as engine:
        prompt = arm.prompt(options.context, engine.config.vocab_size)
        free = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        plain_ids, plain = measure(engine, prompt, free, warm_up)
        grammar_ids, grammar = measure(engine, prompt, free.merged({"json_schema": SCHEMA}), warm_up)
    arm.report(plain_ids + grammar_ids, {"python_median_us": 1e6 * plain, "python_grammar_median_us": 1e6 * grammar})


if __name__ == "__main__":
    main()
