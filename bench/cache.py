"""Arm: the prefix cache. A repeat, a burst of users of one system prompt, restores from memory and disk, 200 turns.

State of the real size without the real weights:

    python -m tools.make_synthetic FOLDER tests/model/configs/qwen3.6-35b-a3b-mlx-4bit.json --experts 8 \\
        --tokenizer python/lily/models/lily-nano
    python -m bench.run cache --model FOLDER --context 2000 --rounds 2
"""

import resource
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench import arm
from lily import Engine, Session

REPEATS = 5
MARGIN = 512  # tokens for what surrounds the prompts: their template, the users' texts
WORDS = (
    "agent",
    "answer",
    "call",
    "check",
    "code",
    "file",
    "find",
    "list",
    "path",
    "plan",
    "read",
    "run",
    "test",
    "tool",
)


def first_token(engine: Engine, token_ids: Sequence[int]) -> tuple[float, list[int]]:
    """Seconds until a greedy first token; that token, and how much of the prompt was cached."""
    start = time.perf_counter()
    done = engine.generate(token_ids, max_tokens=1, temperature=0)
    return time.perf_counter() - start, [done.token_ids[0], done.usage.cached_tokens]


def text(num_bytes: int, seed: int = 0) -> str:
    """ASCII words that look random and are the same everywhere."""
    words = (WORDS[place] for place in arm.prompt(seed + num_bytes, len(WORDS))[seed:])
    return " ".join(words)[:num_bytes]


def resident_mib() -> float:
    """Memory of this process that is in RAM, the mapped weights included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def burst(engine: Engine, prompts: Sequence[Sequence[int]], name: str, computed: list[int]) -> dict[str, float]:
    """First-token times of many users, one after the other."""
    engine.prefix_cache.clear()
    seconds = []
    for prompt in prompts:
        elapsed, outcome = first_token(engine, prompt)
        seconds.append(elapsed)
        computed += outcome
    p50, p95 = np.percentile(seconds, [50, 95])
    return {f"{name}_p50_ms": 1e3 * float(p50), f"{name}_p95_ms": 1e3 * float(p95)}


def session_at(engine: Engine, prompt: Sequence[int]) -> Session:
    session = engine.session()
    session.prefill(prompt)
    return session


def restore_ms(engine: Engine, prompt: Sequence[int]) -> float:
    """Milliseconds to bring a session back to the kept state, which is shared and not copied."""
    seconds = []
    for _ in range(REPEATS):
        with session_at(engine, prompt) as session:
            session.decode(prompt[-1])  # away from what is kept
            start = time.perf_counter()
            kept = session.truncate(len(prompt) - 1)
            seconds.append(time.perf_counter() - start)
            assert kept == len(prompt) - 1
    return 1e3 * statistics.median(seconds)


def files(engine: Engine, prompt: Sequence[int], computed: list[int]) -> dict[str, float]:
    """Times of saving a session and of loading it, from a file that the system has in memory."""
    saves, loads = [], []
    with tempfile.TemporaryDirectory() as folder, session_at(engine, prompt) as session:
        path = Path(folder) / "session.lily"
        for _ in range(REPEATS):
            start = time.perf_counter()
            session.save(path)
            saved = time.perf_counter()
            with engine.load_session(path) as loaded:
                loads.append(time.perf_counter() - saved)
                computed.append(int(loaded.logits.argmax()))
            saves.append(saved - start)
        size = path.stat().st_size
    times = {"save_ms": 1e3 * statistics.median(saves), "load_ms": 1e3 * statistics.median(loads)}
    return times | {"file_mib": size / 2**20, "state_mib": engine.runtime.state_use["slot_bytes"] / 2**20}


def conversation(engine: Engine, start: Sequence[int], turns: int, computed: list[int]) -> dict[str, float]:
    """Memory after many turns of one conversation: the snapshots', the process's, and its growth that is not theirs."""
    engine.prefix_cache.clear()
    timeline, middle = list(start), 0.0

    def snapshots_mib() -> float:
        return engine.prefix_cache.stats().snapshot_bytes / 2**20

    for n in range(turns):
        if n == turns // 2:
            middle = resident_mib() - snapshots_mib()
        done = engine.generate(timeline, max_tokens=2, temperature=0, ignore_eos=True)
        timeline += done.token_ids
    computed += timeline
    after, kept = resident_mib(), snapshots_mib()
    engine.prefix_cache.clear()
    return {
        "snapshot_mib_after_turns": kept,
        "snapshot_limit_mib": engine.prefix_cache.stats().limit_bytes / 2**20,
        "resident_mib_after_turns": after,
        "resident_growth_beside_snapshots_mib": after - kept - middle,
        "resident_mib_after_clear": resident_mib(),
    }


def main() -> None:
    parser = arm.options(__doc__ or "")
    parser.add_argument("--users", type=int, default=50, help="of the burst (default: %(default)s)")
    parser.add_argument(
        "--users-without-cache",
        type=int,
        default=2,
        help="of the same burst without a cache, where each computes the whole prompt (default: %(default)s)",
    )
    parser.add_argument("--system-bytes", type=int, default=7168, help="of their system prompt (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=200, help="of one conversation (default: %(default)s)")
    options = parser.parse_args()

    computed: list[int] = []
    metrics: dict[str, float] = {}
    # A token is at least a byte.
    length = max(2 * options.context, options.system_bytes) + 2 * options.turns + MARGIN
    with Engine(options.model, device=options.device, max_context=length) as engine:
        tokens = arm.prompt(length, engine.config.vocab_size)
        prompt = tokens[: options.context]
        first_token(engine, tokens[-16:])  # reads the weights
        engine.prefix_cache.clear()
        cold, outcome = first_token(engine, prompt)
        warm = [first_token(engine, prompt) for _ in range(REPEATS)]
        computed += [*outcome, *(value for _, again in warm for value in again)]
        metrics["cold_ms"] = 1e3 * cold
        metrics["warm_ms"] = 1e3 * statistics.median(seconds for seconds, _ in warm)
        metrics["warm_part_of_cold"] = metrics["warm_ms"] / metrics["cold_ms"]
        metrics["warm_computed_tokens"] = len(prompt) - min(cached for _, (_, cached) in warm)
        metrics["restore_ms"] = restore_ms(engine, prompt)
        metrics |= files(engine, prompt, computed)
        system = text(options.system_bytes)
        users = [
            engine.tokenize(engine.render([{"role": "system", "content": system}, {"role": "user", "content": user}]))
            for user in (text(64, seed=n + 1) for n in range(options.users))
        ]
        metrics["burst_prompt_tokens"] = statistics.median(map(len, users))
        metrics |= burst(engine, users, "burst", computed)
        metrics |= conversation(engine, tokens[:16], options.turns, computed)
    with Engine(options.model, device=options.device, max_context=length, prefix_cache_bytes=0) as engine:
        first_token(engine, tokens[-16:])
        metrics |= burst(engine, users[: options.users_without_cache], "burst_without_cache", computed)
    arm.report(computed, metrics)


if __name__ == "__main__":
    main()
