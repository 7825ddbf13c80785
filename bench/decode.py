"""Arm: greedy decoding of one sequence after a prompt, step by step through the public low-level API."""

import statistics
import time

from bench import arm
from lily import Engine, _core
from lily.floors import decode_bytes
from lily.machine import read_bytes_per_second


def main() -> None:
    parser = arm.options(__doc__ or "")
    parser.add_argument("--tokens", type=int, default=128, help="steps that are timed (default: %(default)s)")
    options = parser.parse_args()

    warm_up = 8
    length = options.context + warm_up + options.tokens
    read_rate = read_bytes_per_second()
    with Engine(options.model, device=options.device, max_context=length) as engine:
        session = engine.session()
        session.prefill(arm.prompt(options.context, engine.config.vocab_size))
        token_ids, seconds = [], []
        for _ in range(warm_up + options.tokens):
            start = time.perf_counter()
            token_id = int(session.logits.argmax())
            session.decode(token_id)
            seconds.append(time.perf_counter() - start)
            token_ids.append(token_id)
        timed = seconds[warm_up:]
        kv_bytes = engine.runtime.state_use["page_bytes"] // _core.PAGE_TOKENS
        read = decode_bytes(engine.config, options.context + len(timed) // 2, kv_bytes)  # what a step cannot avoid
        metrics = {
            "decode_tokens_per_second": len(timed) / sum(timed),
            "step_median_ms": 1e3 * statistics.median(timed),
            "step_max_ms": 1e3 * max(timed),
            "read_gb_per_second": read / statistics.median(timed) / 1e9,
            "part_of_read_rate": read / statistics.median(timed) / read_rate,
        }
    arm.report(token_ids, metrics)


if __name__ == "__main__":
    main()
