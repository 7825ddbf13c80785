"""What the programs of a model cost on a GPU: dispatches, dependency levels, bytes and FLOPs of every kernel.

    python -m bench.ledger [--config CONFIG.json] [--contexts 256 4096] [--json]

Everything but the last column is counted from the programs for a device without memory; nothing is run or
timed. Bytes: every byte that a dispatch touches, once. The traffic of keys and values that attention reads again, tile
by tile, is a column of its own. Threadgroup memory is static, as a compiler for another GPU keeps it, with matrix
products on simdgroup matrices and on tensor operations. Tokens per second are a PREDICTION: per level the larger of
bytes / bandwidth and FLOPs / rate, plus a cost. The defaults are calibrated with published figures of an engine for the
same model (`PUBLISHED`); the last table shows how well the formula gives them back. No figure of lily is among them.
"""

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.dispatch_costs import Cost, Dispatch, DispatchCosts, Sizes, op_of
from lily import _core
from lily.config import load_config
from tools.make_synthetic import make_synthetic
from tools.msl.build import Source, ptx, threadgroup_bytes
from tools.msl.grid import find_grid
from tools.msl.preamble import FORMS, kernel_defines

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "tests/model/configs/qwen3.6-35b-a3b-mlx-4bit.json"
CONTEXTS = (256, 1024, 4096, 8192, 32_768, 131_072)
DEVICE_GIB = (16, 64)  # that GPUs may hold: with little memory and with much (src/lily_core/device/gpu.h)

# An engine for the 35B at 4 bits on an M5 Max with 40 GPU cores: context -> decode, prefill tokens per second.
PUBLISHED = {256: (194.7, 2867), 4096: (182.8, 5724), 32_768: (151.1, 3928), 131_072: (92.7, 1793)}
# It takes 415 levels a token, reads the recurrent state twice and writes it once. 478 GB/s were measured on that chip
# for matrix-vector products. Its prefill at 4,096 tokens gives the rate of matrix products.
PUBLISHED_LEVELS = 415
BANDWIDTH = 478e9  # bytes per second
MATRIX_RATE = 31e12  # FLOPs per second
LEVEL_SECONDS = 3e-6


@dataclass
class Row:
    """One program, or all chunks of a prompt, at a context."""

    context: int
    levels: int = 0
    total: Cost = field(default_factory=Cost)
    kernels: dict[str, Cost] = field(default_factory=lambda: defaultdict(Cost))
    names: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # by kernel: with formats of weights
    seconds: float = 0  # predicted
    chunk_tokens: int = 0  # of a prefill chunk
    chunk_dispatches: int = 0  # the most of one chunk


@dataclass(frozen=True)
class Machine:
    bandwidth: float = BANDWIDTH
    matrix_rate: float = MATRIX_RATE
    level_seconds: float = LEVEL_SECONDS

    def seconds(self, num_bytes: float, flops: float, levels: int = 1) -> float:
        return max(num_bytes / self.bandwidth, flops / self.matrix_rate) + levels * self.level_seconds


class Ledger:
    """Counts the programs of the model of a config.json."""

    def __init__(self, config: Mapping[str, object], max_context: int = max(CONTEXTS), machine: Machine | None = None):
        self.machine = machine or Machine()
        with tempfile.TemporaryDirectory() as folder:
            make_synthetic(Path(folder), dict(config), hollow=True)
            arguments = load_config(Path(folder)).core_arguments()
            native = _core.ModelConfig(**arguments)
            outlines = [
                _core.ProgramOutline(folder=folder, config=native, max_context=max_context, device_bytes=gib << 30)
                for gib in DEVICE_GIB
            ]
        self.outlines = {outline.chunk_tokens: outline for outline in outlines}
        self.sizes: Sizes = arguments["sizes"]
        self.costs = DispatchCosts(self.sizes)
        self.eps: float = arguments["rms_norm_eps"]

    def decode(self, context: int) -> Row:
        """One token at a context of so many tokens, its own included."""
        row = Row(context)
        self._count(row, next(iter(self.outlines.values())).decode(1, context), context, {})
        return row

    @property
    def chunk_lengths(self) -> list[int]:
        """Tokens of a prefill chunk, of GPUs with little and with much memory."""
        return list(self.outlines)

    def prefill(self, context: int, chunk_tokens: int) -> Row:
        """A prompt of so many tokens, without the head. chunk_tokens: one of chunk_lengths."""
        row, outline = Row(context, chunk_tokens=chunk_tokens), self.outlines[chunk_tokens]
        full, rest = divmod(context, chunk_tokens)
        for rows, begins in ((chunk_tokens, range(full)), (rest, range(full, full + bool(rest)))):
            program = outline.prefill(rows) if begins else []
            fixed: dict[int, Cost] = {}
            for chunk in begins:
                self._count(row, program, chunk * chunk_tokens, fixed)
        return row

    def threadgroup_bytes(self, names: Iterable[str], form: str) -> int:
        """Static threadgroup memory: the most of some kernels, in one of the FORMS of matrix products."""
        return max(self._threadgroup_bytes(name, form) for name in names)

    def _threadgroup_bytes(self, name: str, form: str) -> int:
        grid = find_grid(name)
        source = Source.read(grid.shader, kernel_defines(name, self.sizes, self.eps, form))
        return threadgroup_bytes(ptx(source))[grid.function]

    def _count(self, row: Row, program: Sequence[Dispatch], position: int, fixed: dict[int, Cost]) -> None:
        """Adds a program to the row. `position`: tokens before the chunk; of a step, its context. `fixed` keeps, by the
        place in the program, the costs that do not depend on it. What has nothing to do is not run: attention of keys
        behind the chunk."""
        by_level: dict[int, Cost] = defaultdict(Cost)
        of_attention: dict[tuple[str, int, tuple[int, ...]], Cost] = {}  # without the layer: all are alike
        for place, (name, level, args, ranges) in enumerate(program):
            op = op_of(name)
            if op == "attn_prefill" and args[2] >= position + args[0]:
                continue
            if not op.startswith("attn"):
                cost = fixed.get(place) or self.costs.of(name, args, ranges, position)
                fixed[place] = cost
            else:
                key = (name, args[0], tuple(args[2:]))
                cost = of_attention.get(key) or self.costs.of(name, args, ranges, position)
                of_attention[key] = cost
            for total in (by_level[level], row.kernels[op], row.total):
                total.add(cost)
            row.names[op].add(name)
        row.levels += len(by_level)
        row.chunk_dispatches = max(row.chunk_dispatches, sum(cost.dispatches for cost in by_level.values()))
        row.seconds += sum(
            self.machine.seconds(cost.bytes_read + cost.bytes_written, cost.flops) for cost in by_level.values()
        )


def table(title: str, rows: Iterable[Row], per_token: bool) -> None:
    print(f"\n{title}")
    head = f"{'context':>8} {'dispatches':>10} {'levels':>7} {'read GB':>9} {'written GB':>10} {'GFLOP':>11}"
    of_chunk = "" if per_token else f" {'most of a chunk':>15}"
    print(f"{head} {'KV traffic GB':>13}{of_chunk} {'predicted tokens/s':>18}")
    for row in rows:
        cost = row.total
        tokens = 1 if per_token else row.context
        of_chunk = "" if per_token else f" {row.chunk_dispatches:15,}"
        print(
            f"{row.context:8,} {cost.dispatches:10,} {row.levels:7,} {cost.bytes_read / 1e9:9,.3f} "
            f"{cost.bytes_written / 1e9:10,.3f} {cost.flops / 1e9:11,.1f} {cost.kv_traffic_bytes / 1e9:13,.3f}"
            f"{of_chunk} {tokens / row.seconds:18,.1f}"
        )


def kernel_tables(ledger: Ledger, rows: Sequence[Row]) -> None:
    """Of the shortest and the longest context."""
    for row in sorted({row.context: row for row in (rows[0], rows[-1])}.values(), key=lambda row: row.context):
        kernel_table(ledger, row)


def kernel_table(ledger: Ledger, row: Row) -> None:
    print(f"\nKernels at context {row.context:,}")
    forms = " ".join(f"{form:>10}" for form in FORMS)
    head = f"{'kernel':20} {'dispatches':>10} {'read MB':>12} {'written MB':>12} {'GFLOP':>12}"
    print(f"{'':{len(head)}} {'threadgroup bytes':>{len(forms)}}\n{head} {forms}")
    for op, cost in sorted(row.kernels.items(), key=lambda item: -item[1].bytes_read):
        needs = " ".join(f"{ledger.threadgroup_bytes(row.names[op], form):10,}" for form in FORMS)
        print(
            f"{op:20} {cost.dispatches:10,} {cost.bytes_read / 1e6:12,.1f} {cost.bytes_written / 1e6:12,.1f} "
            f"{cost.flops / 1e9:12,.2f} {needs}"
        )


def calibration(ledger: Ledger) -> None:
    """The formula for the published engine, beside what was published."""
    print("\nCalibration: the published engine by the same formula (35B, M5 Max). Prefill: FLOPs only. Short prompts,")
    print("for which all weights are read for few rows, come out too fast.")
    print(f"{'context':>8} {'decode published':>17} {'formula':>8} {'prefill published':>18} {'formula':>8}")
    machine = ledger.machine
    state = 3 * 4 * ledger.costs.state * ledger.sizes["num_linear_layers"]
    for context, (decode, prefill) in PUBLISHED.items():
        step = ledger.decode(context).total
        seconds = machine.seconds(step.weight_bytes + state + step.kv_bytes, 0, PUBLISHED_LEVELS)
        flops = ledger.prefill(context, ledger.chunk_lengths[-1]).total.flops
        print(
            f"{context:8,} {decode:17,.1f} {1 / seconds:8,.1f} {prefill:18,.0f} "
            f"{context * machine.matrix_rate / flops:8,.0f}"
        )


def as_json(row: Row) -> dict[str, float]:
    cost = row.total
    of_chunk = {"chunk_tokens": row.chunk_tokens, "chunk_dispatches": row.chunk_dispatches} if row.chunk_tokens else {}
    return {
        "context": row.context, "dispatches": cost.dispatches, "levels": row.levels,
        "bytes_read": round(cost.bytes_read), "bytes_written": round(cost.bytes_written), "flops": round(cost.flops),
    } | of_chunk  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=CONFIG, help="config.json of a checkpoint (default: the 35B)")
    parser.add_argument("--contexts", type=int, nargs="+", default=CONTEXTS, metavar="TOKENS")
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH, help="bytes per second (default: %(default)g)")
    parser.add_argument(
        "--matrix-rate", type=float, default=MATRIX_RATE, help="FLOPs per second (default: %(default)g)"
    )
    parser.add_argument("--level-seconds", type=float, default=LEVEL_SECONDS, help="of a level (default: %(default)g)")
    parser.add_argument(
        "--json", action="store_true", help="print `decode`, a row a context, and `prefill`, one a chunk length as well"
    )
    options = parser.parse_args()
    machine = Machine(options.bandwidth, options.matrix_rate, options.level_seconds)
    config = json.loads(options.config.read_text(encoding="utf-8"))
    ledger = Ledger(config, max(*options.contexts, *PUBLISHED), machine)
    decode = [ledger.decode(context) for context in options.contexts]
    prefill = {
        length: [ledger.prefill(context, length) for context in options.contexts] for length in ledger.chunk_lengths
    }
    if options.json:
        rows = {"decode": decode, "prefill": [row for of_length in prefill.values() for row in of_length]}
        print(json.dumps({program: [as_json(row) for row in of_program] for program, of_program in rows.items()}))
        return
    table("Decode, one token", decode, per_token=True)
    kernel_tables(ledger, decode)
    for length, of_length in prefill.items():
        table(f"Prefill of a whole prompt in chunks of {length:,} tokens, without the head", of_length, per_token=False)
        kernel_tables(ledger, of_length)
    print(f"\nTokens/s are a PREDICTION for {machine}, not a measurement.")
    if options.config == CONFIG:
        calibration(ledger)


if __name__ == "__main__":
    main()
