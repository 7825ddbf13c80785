"""Arm: reading one prompt from the start, after a warm-up with a prompt of the same length."""

import time

from bench import arm
from lily import Engine


def main() -> None:
    parser = arm.options(__doc__ or "")
    options = parser.parse_args()

    length = options.context
    with Engine(options.model, device=options.device, max_context=length + 1) as engine:
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
    arm.report(computed, {"prefill_tokens_per_second": length / seconds, "time_to_first_token_ms": 1e3 * seconds})


if __name__ == "__main__":
    main()
