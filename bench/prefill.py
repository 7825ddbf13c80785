"""Arm: reading one prompt from the start, after a warm-up with a prompt of the same length."""

import time

from bench import arm
from lily import Engine
from lily.floors import prefill_operations
from lily.machine import multiply_operations_per_second


def main() -> None:
    parser = arm.options(__doc__ or "")
    options = parser.parse_args()

    length = options.context
    with Engine(options.model, device=options.device, max_context=length + 1) as engine:
        is_cpu = engine.runtime.device == "cpu"
        multiply_rate = multiply_operations_per_second(engine.runtime.dtype) if is_cpu else None
        token_ids = arm.prompt(length, engine.config.vocab_size)
        with engine.session() as session:
            session.prefill(token_ids[::-1])
        with engine.session() as session:
            start = time.perf_counter()
            reused = session.prefill(token_ids)
            seconds = time.perf_counter() - start
            if reused != 0:
                raise RuntimeError(f"{reused} of {length} tokens were reused: this would not time a prefill")
            computed = [*token_ids, int(session.logits.argmax())]
        rate = prefill_operations(engine.config, length) / seconds
    metrics = {
        "prefill_tokens_per_second": length / seconds,
        "time_to_first_token_ms": 1e3 * seconds,
        "multiply_gop_per_second": rate / 1e9,
    }
    if multiply_rate is not None:
        metrics["part_of_multiply_rate"] = rate / multiply_rate
    arm.report(computed, metrics)


if __name__ == "__main__":
    main()
