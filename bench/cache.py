"""Arm: the prefix cache. A repeat, a burst of users of one system prompt, restores from memory and disk, 200 rounds."""

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import arm
from lily import Engine, Session

REPEATS = 5


def first_token(engine: Engine, token_ids: Sequence[int]) -> tuple[float, int]:
    """Seconds until a greedy first token, and that token."""
    start = time.perf_counter()
    done = engine.generate(token_ids, max_tokens=1, temperature=0)
    return time.perf_counter() - start, done.token_ids[0]


def burst(engine: Engine, prompts: Sequence[Sequence[int]], name: str, computed: list[int]) -> dict[str, float]:
    """First-token times of many users, one after the other."""
    engine.prefix_cache.clear()
    seconds = []
    for prompt in prompts:
        elapsed, token_id = first_token(engine, prompt)
        seconds.append(elapsed)
        computed.append(token_id)
    cuts = statistics.quantiles(seconds, n=20)
    return {f"{name}_p50_ms": 1e3 * statistics.median(seconds), f"{name}_p95_ms": 1e3 * cuts[18]}


def session_at(engine: Engine, prompt: Sequence[int]) -> Session:
    session = engine.session()
    session.prefill(prompt)
    return session


def restore_ms(engine: Engine, prompt: Sequence[int]) -> float:
    """Milliseconds to bring a new session to the kept state, without the last token's own step."""
    seconds = []
    for _ in range(REPEATS):
        with session_at(engine, prompt) as session:
            session.decode(prompt[-1])  # away from what is kept
            start = time.perf_counter()
            kept = session.truncate(len(prompt) - 1)
            seconds.append(time.perf_counter() - start)
            assert kept == len(prompt) - 1
    return 1e3 * statistics.median(seconds)


def main() -> None:
    parser = arm.options(__doc__ or "")
    parser.add_argument("--users", type=int, default=50, help="of the burst (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="of one conversation (default: %(default)s)")
    options = parser.parse_args()

    computed: list[int] = []
    metrics: dict[str, float] = {}
    length = max(2 * options.context, 512) + 2 * options.rounds
    with Engine(options.model, device=options.device, max_context=length) as engine:
        tokens = arm.prompt(length, engine.config.vocab_size)
        prompt = tokens[: options.context]
        first_token(engine, prompt)  # warms up
        engine.prefix_cache.clear()
        cold, token_id = first_token(engine, prompt)
        warm = [first_token(engine, prompt) for _ in range(REPEATS)]
        computed += [token_id, *(again for _, again in warm)]
        metrics["cold_ms"] = 1e3 * cold
        metrics["warm_ms"] = 1e3 * statistics.median(seconds for seconds, _ in warm)
        metrics["warm_part_of_cold"] = metrics["warm_ms"] / metrics["cold_ms"]
        metrics["restore_ms"] = restore_ms(engine, prompt)
        # Raw prompts part at the user's text: the second user's prompt finds the place, later ones start there.
        users = [[*prompt, *tokens[n : n + 16]] for n in range(options.users)]
        metrics |= burst(engine, users, "burst", computed)
        with tempfile.TemporaryDirectory() as folder, session_at(engine, prompt) as session:
            path = Path(folder) / "session.lily"
            start = time.perf_counter()
            session.save(path)
            metrics["save_ms"] = 1e3 * (time.perf_counter() - start)
            start = time.perf_counter()
            with engine.load_session(path) as loaded:
                metrics["load_ms"] = 1e3 * (time.perf_counter() - start)
                computed.append(int(loaded.logits.argmax()))
        conversation = list(tokens[:16])
        for _ in range(options.rounds):
            done = engine.generate(conversation, max_tokens=2, temperature=0, ignore_eos=True)
            conversation += done.token_ids
        computed += conversation
        metrics["snapshot_mib_after_rounds"] = engine.prefix_cache.stats().snapshot_bytes / 2**20
        metrics["snapshot_limit_mib"] = engine.prefix_cache.stats().limit_bytes / 2**20
    with Engine(options.model, device=options.device, max_context=length, prefix_cache_bytes=0) as engine:
        first_token(engine, prompt)
        metrics |= burst(engine, users, "burst_without_cache", computed)
    arm.report(computed, metrics)


if __name__ == "__main__":
    main()
