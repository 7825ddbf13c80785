"""Arm: time that Python takes between two decode steps of one stream: without a grammar, with a JSON schema, and within
the raw text of a tool call in XML, where a grammar is at its slowest.

Masks are computed while a GPU computes the logits; on the CPU they add to the step. They are reported apart, and
`python_grammar_median_us` is the sum: what a token costs where nothing is hidden.

    python -m bench.overhead
    python -m bench.overhead --model $(python -m bench.overhead_model FOLDER)     # 248,320 tokens
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench import arm
from lily import Engine, SamplingParams, _core
from lily.messages import Tool

SCHEMA = {"type": "array", "items": {"type": "string", "maxLength": 40}, "minItems": 1000}
TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "write_file",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"}},
            "required": ["path", "content"],
        },
    },
}
CALL = "<tool_call>\n<function=write_file>\n<parameter=path>\ncounter.py\n</parameter>\n<parameter=content>\n"
SOURCE = '''
def count(words: list[str]) -> dict[str, int]:
    """How often each word occurs: `count(["a"])["a"] == 1`, <b>not</b> 2."""
    found = {}
    for word in words:
        if len(word) > 0 and word != "":
            found[word] = found.get(word, 0) + 1

    return found
'''
WARM_UP = 8  # steps that are not timed


class TimedRuntime:
    """A runtime that notes how long Python takes for a step: outside of `decode`, and within it for a mask.

    script: token ids that are drawn, if the mask allows them; without one the model decides.
    """

    def __init__(self, runtime: Any, script: Sequence[int] = ()) -> None:
        self._runtime = runtime
        self._script = iter(script)
        self._end = 0.0
        self.gaps: list[float] = []
        self.masks: list[float] = []
        self.max_chunk_tokens = runtime.max_chunk_tokens
        self.timeline = runtime.timeline

    def prefill(self, *arguments: Any, sampling: _core.Sampling | None, **options: Any) -> Any:
        return self._runtime.prefill(*arguments, sampling=self._next(sampling), **options)

    def decode(
        self,
        timelines: Sequence[Any],
        token_ids: Sequence[int] | None,
        *,
        sampling: Sequence[_core.Sampling],
        masks: Sequence[Callable[[], Any] | None],
    ) -> Sequence[Any]:
        if self._end:
            self.gaps.append(time.perf_counter() - self._end)
        (row,), (mask,) = sampling, masks
        results: Sequence[Any] = self._runtime.decode(
            timelines, token_ids, sampling=[self._next(row)], masks=[mask and (lambda: self._timed(mask))]
        )
        self._end = time.perf_counter()
        return results

    def _timed(self, mask: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        words = mask()
        self.masks.append(time.perf_counter() - start)
        return words

    def _next(self, sampling: _core.Sampling | None) -> _core.Sampling | None:
        if sampling is None:  # a chunk of a prompt that is not the last one
            return None
        token_id = next(self._script, None)
        return sampling if token_id is None else _core.Sampling(bias=[(token_id, 1e30)])


def run(engine: Engine, make_stream: Callable[[], Any], script: Sequence[int] = ()) -> tuple[list[int], TimedRuntime]:
    """The token ids that the stream gives, and the runtime that timed them."""
    native, timed = engine.runtime, TimedRuntime(engine.runtime, script)
    engine._runtime = timed  # type: ignore[assignment]
    try:
        with make_stream() as stream:
            return [chunk.token_id for chunk in stream], timed
    finally:
        engine._runtime = native


def microseconds(name: str, timed: TimedRuntime) -> dict[str, float]:
    gaps, masks = timed.gaps[WARM_UP:], timed.masks[WARM_UP:]
    metrics = {f"{name}_median_us": 1e6 * statistics.median(gaps)}
    if masks:
        metrics[f"{name}_mask_median_us"] = 1e6 * statistics.median(masks)
        metrics[f"{name}_mask_p95_us"] = 1e6 * statistics.quantiles(masks, n=20, method="inclusive")[-1]
        metrics[f"{name}_mask_max_us"] = 1e6 * max(masks)
    return metrics


def main() -> None:
    parser = arm.options(__doc__ or "")
    parser.add_argument("--tokens", type=int, default=256, help="steps that are timed (default: %(default)s)")
    options = parser.parse_args()

    length = WARM_UP + options.tokens
    question = [{"role": "user", "content": "Write a program that counts words."}]
    with Engine(options.model, device=options.device, max_context=options.context + 1024 + length) as engine:
        prompt = arm.prompt(options.context, engine.config.vocab_size)
        free = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        json_params = free.merged({"json_schema": SCHEMA})
        head, value = (engine.tokenize(text, allow_special=True) for text in (CALL, SOURCE))
        script = head + value * (length // len(value) + 1)
        plain_ids, plain = run(engine, lambda: engine.stream(prompt, free))
        json_ids, json = run(engine, lambda: engine.stream(prompt, json_params))
        xml_ids, xml = run(
            engine,
            lambda: engine.stream_chat(
                question, free, tools=[TOOL], tool_choice="required", reasoning=False, max_tokens=len(head) + length
            ),
            script,
        )
        if xml_ids != script[: len(xml_ids)]:
            raise SystemExit("the grammar refused a token of the scripted tool call")
    for part in (xml.gaps, xml.masks):
        del part[: len(head)]
    steps = [gap + mask for gap, mask in zip(json.gaps, json.masks[1:], strict=True)][WARM_UP:]
    metrics = {"python_grammar_median_us": 1e6 * statistics.median(steps)}
    for name, timed in (("python", plain), ("python_json", json), ("python_xml", xml)):
        metrics |= microseconds(name, timed)
    arm.report(plain_ids + json_ids + xml_ids, metrics)


if __name__ == "__main__":
    main()
