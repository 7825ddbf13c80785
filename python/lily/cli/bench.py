"""`lily bench`: how fast a model runs here, as CSV by context length, under a header that describes the machine."""

from __future__ import annotations

import argparse
import csv
import io
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Final

from lily import Engine, _core
from lily.floors import decode_bytes, prefill_operations
from lily.machine import describe_machine, multiply_operations_per_second, read_bytes_per_second, versions

from .options import Verbs, add_engine_flags, make_engine, positive

CONTEXTS: Final = (128, 1024, 4096, 16384)
_WARM_UP_STEPS: Final = 4
_USER_TOKENS: Final = 32  # of each user in the burst, behind the shared system prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line: a test at a context length. Times are of one run (prefill, warm, burst: a prompt; decode: a token).

    read_gb_per_second: of decode, by the bytes that a step cannot avoid; part_of_read_rate: of the machine's, which the
    header has. multiply_gop_per_second: of prefill, by the operations of the weights' products; part_of_multiply_rate:
    of the machine's, on the CPU device alone.
    """

    test: str
    context_tokens: int
    cached_tokens: int
    runs: int
    median_ms: float
    p95_ms: float
    tokens_per_second: float | None = None
    read_gb_per_second: float | None = None
    part_of_read_rate: float | None = None
    multiply_gop_per_second: float | None = None
    part_of_multiply_rate: float | None = None


def add_parser(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "bench",
        help="measure a model on this machine",
        description="Prints CSV behind lines with # that describe the machine. Tests: prefill (a prompt from nothing), "
        "decode (one token after another), warm (the same prompt again), burst (users of one system prompt). "
        "Stop other work first; docs/benchmark.md says how records for publication are made.",
    )
    add_engine_flags(parser, default_model="lily-nano")
    parser.add_argument(
        "--contexts", type=_contexts, metavar="N,N", help="tokens; default: those of " + _listed(CONTEXTS) + " that fit"
    )
    parser.add_argument("--tokens", type=positive, default=64, help="decode steps that are timed; default: %(default)s")
    parser.add_argument("--runs", type=positive, default=3, help="of prefill and warm; default: %(default)s")
    parser.add_argument("--users", type=positive, default=8, help="of the burst; default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    read_rate, multiply_rate = read_bytes_per_second(), None
    with make_engine(options) as engine:
        if engine.runtime.device == "cpu":
            multiply_rate = multiply_operations_per_second(engine.runtime.dtype)
        bench = Bench(
            engine,
            tokens=options.tokens,
            runs=options.runs,
            users=options.users,
            read_rate=read_rate,
            multiply_rate=multiply_rate,
        )
        contexts = bench.contexts(options.contexts)
        header: dict[str, object] = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "command": options.command,
            **describe_machine(),
            **versions(),
            "model": options.model,
            "device": engine.runtime.device_description,
            "dtype": engine.runtime.dtype,
            "machine_read_gb_per_second": round(read_rate / 1e9, 2),
        }
        if multiply_rate is not None:
            header["machine_multiply_gop_per_second"] = round(multiply_rate / 1e9, 1)
        if options.json:
            rows = [asdict(row) for context in contexts for row in bench.rows(context)]
            print(json.dumps({"header": header, "rows": rows}, ensure_ascii=False))
            return 0
        for name, value in header.items():
            print(f"# {name}: {value}")
        print(_csv([field.name for field in fields(Row)]), flush=True)
        for context in contexts:
            for row in bench.rows(context):
                print(_csv(_cells(row)), flush=True)
    return 0


class Bench:
    """The tests of one engine."""

    def __init__(
        self, engine: Engine, *, tokens: int, runs: int, users: int, read_rate: float, multiply_rate: float | None
    ) -> None:
        self._engine = engine
        self._tokens, self._runs, self._users = tokens, runs, users
        self._read_rate, self._multiply_rate = read_rate, multiply_rate
        state = engine.runtime.state_use
        self._kv_bytes_per_token = state["page_bytes"] // _core.PAGE_TOKENS
        self._extra = _WARM_UP_STEPS + max(tokens, _USER_TOKENS + 1)

    def contexts(self, wanted: Sequence[int] | None) -> list[int]:
        """The lengths to measure. Raises ValueError for a wanted one that does not fit with what is run behind it."""
        most = self._engine.max_context - self._extra
        for context in wanted or ():
            if context > most:
                raise ValueError(
                    f"a context of {context} and {self._extra} tokens behind it are more than the "
                    f"{self._engine.max_context} that fit; choose smaller --contexts or a larger --max-context"
                )
        chosen = list(wanted) if wanted is not None else [context for context in CONTEXTS if context <= most]
        if not chosen:
            raise ValueError(
                f"--max-context {self._engine.max_context} has no room for {CONTEXTS[0] + self._extra} tokens"
            )
        return chosen

    def rows(self, context: int) -> Iterator[Row]:
        """All tests at one context length."""
        prompt = prompt_ids(context, self._engine.config.vocab_size)
        self._engine.prefix_cache.clear()
        self._first_token(prompt)  # warms up: programs of these sizes, pages of memory
        yield self._prefill(prompt)
        yield self._decode(prompt)
        if self._engine.prefix_cache.enabled:
            yield self._warm(prompt)
            yield self._burst(prompt)

    def _prefill(self, prompt: Sequence[int]) -> Row:
        seconds = []
        for _ in range(self._runs):
            self._engine.prefix_cache.clear()
            seconds.append(self._first_token(prompt)[0])
        rate = prefill_operations(self._engine.config, len(prompt)) / statistics.median(seconds)
        return replace(
            _row("prefill", len(prompt), 0, seconds, len(prompt)),
            multiply_gop_per_second=rate / 1e9,
            part_of_multiply_rate=rate / self._multiply_rate if self._multiply_rate is not None else None,
        )

    def _decode(self, prompt: Sequence[int]) -> Row:
        seconds = []
        with self._engine.session() as session:
            session.prefill(prompt)
            for step in range(_WARM_UP_STEPS + self._tokens):
                start = time.perf_counter()
                session.decode(int(session.logits.argmax()))
                if step >= _WARM_UP_STEPS:
                    seconds.append(time.perf_counter() - start)
        read = decode_bytes(self._engine.config, len(prompt) + self._tokens // 2, self._kv_bytes_per_token)
        rate = read / statistics.median(seconds)
        return replace(
            _row("decode", len(prompt), 0, seconds, 1),
            read_gb_per_second=rate / 1e9,
            part_of_read_rate=rate / self._read_rate,
        )

    def _warm(self, prompt: Sequence[int]) -> Row:
        self._first_token(prompt)
        runs = [self._first_token(prompt) for _ in range(self._runs)]
        return _row("warm", len(prompt), runs[-1][1], [seconds for seconds, _ in runs], None)

    def _burst(self, prompt: Sequence[int]) -> Row:
        """Users of one system prompt, one after the other; the first, who pays for it, and the second are not timed."""
        self._engine.prefix_cache.clear()
        user_ids = prompt_ids((self._users + 2) * _USER_TOKENS, self._engine.config.vocab_size, seed=2)
        parts = [user_ids[n * _USER_TOKENS : (n + 1) * _USER_TOKENS] for n in range(self._users + 2)]
        runs = [self._first_token([*prompt, *part]) for part in parts][2:]
        return _row("burst", len(prompt) + _USER_TOKENS, runs[-1][1], [seconds for seconds, _ in runs], None)

    def _first_token(self, prompt: Sequence[int]) -> tuple[float, int]:
        """Seconds until the first token, and how many tokens of the prompt were reused."""
        start = time.perf_counter()
        done = self._engine.generate(prompt, max_tokens=1, temperature=0, ignore_eos=True)
        return time.perf_counter() - start, done.usage.cached_tokens


def prompt_ids(length: int, vocab_size: int, *, seed: int = 1) -> list[int]:
    """Token ids that look random and are the same everywhere, without special tokens, which end the vocabulary."""
    state, token_ids = seed, []
    for _ in range(length):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        token_ids.append((state >> 33) % (vocab_size - vocab_size // 16))
    return token_ids


def _row(test: str, context: int, cached: int, seconds: Sequence[float], tokens: int | None) -> Row:
    median = statistics.median(seconds)
    return Row(
        test=test,
        context_tokens=context,
        cached_tokens=cached,
        runs=len(seconds),
        median_ms=1e3 * median,
        p95_ms=1e3 * (statistics.quantiles(seconds, n=20, method="inclusive")[18] if len(seconds) > 1 else median),
        tokens_per_second=None if tokens is None else tokens / median,
    )


def _cells(row: Row) -> list[str]:
    values = (getattr(row, field.name) for field in fields(Row))
    return ["" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value) for value in values]


def _csv(cells: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(cells)
    return line.getvalue()


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _contexts(text: str) -> list[int]:
    return [positive(part.strip()) for part in text.split(",")]
