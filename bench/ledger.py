"""What the recorded programs of a model cost on a GPU: dispatches, dependency levels, bytes and FLOPs of every kernel.

    python -m bench.ledger [--config CONFIG.json] [--contexts 256 4096] [--json]

Everything but the last column is counted from the programs, recorded for a device without memory; nothing is run or
timed. Bytes: every byte that a dispatch touches, once. The traffic of keys and values that attention reads again, tile
by tile, is a column of its own. Threadgroup memory is static, as a compiler for another GPU keeps it, with matrix
products on simdgroup matrices and on tensor operations. Tokens per second are a PREDICTION: per level the larger of
bytes / bandwidth and FLOPs / rate, plus a cost. The defaults are calibrated with published figures of an engine for the
same model (`PUBLISHED`); the last table shows how well the formula gives them back. No figure of lily is among them.
"""

import argparse
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from lily import _core
from lily.config import load_config
from tools.make_synthetic import make_synthetic
from tools.msl.build import Source, ptx, threadgroup_bytes
from tools.msl.grid import constants, find_grid
from tools.msl.preamble import FORMS, kernel_defines

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "tests/model/configs/qwen3.6-35b-a3b-mlx-4bit.json"
CONTEXTS = (256, 1024, 4096, 8192, 32_768, 131_072)
DEVICE_GIB = (16, 64)  # that GPUs may hold: with little memory and with much (src/lily_core/device/gpu.h)
KEY_BLOCK = 32  # keys that attention's tiles take at a time
DELTA_CHUNK = 64  # tokens of the delta rule's chunk
WRITTEN_ONLY = ("kv", "logits")  # bound for both because a dispatch writes a part of them

# An engine for the 35B at 4 bits on an M5 Max with 40 GPU cores: context -> decode, prefill tokens per second.
PUBLISHED = {256: (194.7, 2867), 4096: (182.8, 5724), 32_768: (151.1, 3928), 131_072: (92.7, 1793)}
# It takes 415 levels a token, reads the recurrent state twice and writes it once. 478 GB/s were measured on that chip
# for matrix-vector products. Its prefill at 4,096 tokens gives the rate of matrix products.
PUBLISHED_LEVELS = 415
BANDWIDTH = 478e9  # bytes per second
MATRIX_RATE = 31e12  # FLOPs per second
LEVEL_SECONDS = 3e-6

Range = tuple[str, int, str]  # buffer, bytes bound, access
Dispatch = tuple[str, int, list[int], list[Range]]  # kernel, level, arguments, what it binds
Sizes = Mapping[str, int]


def op_of(name: str) -> str:
    """ "gdn_in_tile" of "gdn_in_q4g64_f16_tile"."""
    return re.sub(r"(_q\dg64w?)*_f16", "", name)


@dataclass
class Cost:
    """Of one dispatch, of the dispatches of a kernel, or of a whole program."""

    dispatches: int = 0
    bytes_read: float = 0
    bytes_written: float = 0
    flops: float = 0
    weight_bytes: float = 0  # of bytes_read
    kv_bytes: float = 0  # of bytes_read: keys and values, each once a dispatch
    kv_traffic_bytes: float = 0  # keys and values as often as tiles read them

    def add(self, other: "Cost") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


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
        s: Sizes = arguments["sizes"]
        self.sizes = s
        self.eps: float = arguments["rms_norm_eps"]
        self.query = s["num_attention_heads"] * s["head_dim"]
        self.key = s["num_key_value_heads"] * s["head_dim"]
        self.key_dim = s["linear_num_key_heads"] * s["linear_key_head_dim"]
        self.value_dim = s["linear_num_value_heads"] * s["linear_value_head_dim"]
        self.channels = 2 * self.key_dim + self.value_dim
        self.state = self.value_dim * s["linear_key_head_dim"]  # elements of one layer's recurrent state

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
                cost = fixed.get(place) or self._dispatch(name, args, ranges, position)
                fixed[place] = cost
            else:
                key = (name, args[0], tuple(args[2:]))
                cost = of_attention.get(key) or self._dispatch(name, args, ranges, position)
                of_attention[key] = cost
            for total in (by_level[level], row.kernels[op], row.total):
                total.add(cost)
            row.names[op].add(name)
        row.levels += len(by_level)
        row.chunk_dispatches = max(row.chunk_dispatches, sum(cost.dispatches for cost in by_level.values()))
        row.seconds += sum(
            self.machine.seconds(cost.bytes_read + cost.bytes_written, cost.flops) for cost in by_level.values()
        )

    def _dispatch(self, name: str, args: list[int], ranges: list[Range], position: int) -> Cost:
        formats, op, rows = re.findall(r"_q(\d)g64w?", name), op_of(name), args[0]
        touched, cost = self._touched(op, args, position), Cost(dispatches=1)
        for buffer, length, access in ranges:
            known = buffer in touched
            num_bytes = touched[buffer] if known else length * self._share_read(op, buffer, rows)
            read, written = num_bytes * (access != "w"), num_bytes * (access != "r")
            if access == "b" and buffer in WRITTEN_ONLY:
                read = 0
            if op == "attn_prefill" and buffer == "partial":
                read, written = self._carried_bytes(args, position)
            cost.bytes_read += read
            cost.bytes_written += written
            if buffer == "kv" and access == "r":
                cost.kv_bytes += num_bytes
        bits = iter(formats)
        matrices = [(buffer, [length for _, length, _ in group]) for buffer, group in groupby(ranges, itemgetter(0))]
        for buffer, lengths in matrices:
            if len(lengths) < 3:
                continue  # a weight is codes, scales and biases, once or twice
            elements = 8 * sum(lengths[::3]) / int(next(bits))
            cost.weight_bytes += sum(lengths) * self._share_read(op, buffer, rows)
            if not op.startswith("embed"):
                routed = op.startswith("experts") and "shared" not in buffer
                share = self.sizes["num_experts_per_tok"] / self.sizes["num_experts"] if routed else 1.0
                cost.flops += 2 * rows * elements * share
        cost.flops += self._other_flops(op, args, position)
        if op == "attn_split":
            cost.kv_traffic_bytes = cost.kv_bytes
        if op == "attn_prefill":
            tile = constants()["LILY_ATTN_PREFILL_ROWS"], constants()["LILY_ATTN_PREFILL_HEADS"]
            cost.kv_traffic_bytes = self.kv_traffic(position, rows, args[2], args[3], *tile)
        return cost

    def _carried_bytes(self, args: list[int], position: int) -> tuple[float, float]:
        """Sums of attention that a dispatch takes up from the one before, and that it leaves for the next."""
        rows, _, first_key, num_keys = args
        row_bytes = 4 * self.sizes["num_attention_heads"] * (self.sizes["head_dim"] + 2)
        begun = min(rows, position + rows - first_key) if first_key else 0
        going_on = min(rows, max(0, position + rows - first_key - num_keys))
        return begun * row_bytes, going_on * row_bytes

    def _share_read(self, op: str, buffer: str, rows: int) -> float:
        """Of a weight: what `rows` rows read, if routing is independent."""
        s = self.sizes
        if op.startswith("embed"):
            return rows / s["vocab_size"]
        if op.startswith("experts") and ".mlp.experts" in buffer:
            return float(1 - (1 - s["num_experts_per_tok"] / s["num_experts"]) ** rows)
        return 1.0

    def kv_traffic(
        self, position: int, rows: int, first_key: int, num_keys: int, tile_rows: int, tile_heads: int
    ) -> float:
        """Bytes of so many keys, and of their values, that `rows` rows from `position` on read in tiles of `tile_rows`
        rows and `tile_heads` query heads of one KV head."""
        s = self.sizes
        group = s["num_attention_heads"] // s["num_key_value_heads"]
        passes = s["num_key_value_heads"] * -(-group // min(tile_heads, group))
        ends = (position + min(first + tile_rows, rows) for first in range(0, rows, tile_rows))
        seen = (-(-end // KEY_BLOCK) * KEY_BLOCK - first_key for end in ends)
        keys = sum(min(max(count, 0), num_keys) for count in seen)
        return float(passes * keys * 2 * 2 * s["head_dim"])

    def _touched(self, op: str, args: list[int], position: int) -> dict[str, float]:
        """Bytes that a dispatch reads, or writes, of each buffer that is not a weight."""
        s, m = self.sizes, args[0]
        hidden, experts, k = s["hidden_size"], s["num_experts"], s["num_experts_per_tok"]
        heads, query_heads = s["linear_num_value_heads"], s["num_attention_heads"]
        conv_state = 4 * (3 if op == "gdn_conv" else 3 * m) * self.channels
        state = 4 * self.state * (1 if op == "gdn_scan" else m)
        keys, queries, ready = m, m, m  # rows that attention still has, and those that end here
        if op == "attn_split":
            keys = m * position
        if op == "attn_prefill":
            keys = min(position + m - args[2], args[3])
            queries = min(m, position + m - args[2])
            ready = queries - min(m, max(0, position + m - args[2] - args[3]))
        kv = keys * 2 * self.key * 2
        used_splits = -(-position // args[3]) if op == "attn_split" else args[1] if op == "attn_combine" else 0
        vocab = s["vocab_size"]
        # float16 operands are 2 bytes, all else 4: docs/design/kernels.md, "Precision".
        return {
            "step": 32 * m, "tokens": 4 * m, "chunk": 4 * m, "x": 4 * m * hidden, "normed": 2 * m * hidden,
            "qkv": 2 * m * self.channels, "z": 2 * m * self.value_dim, "ba": 4 * m * 2 * heads,
            "conv_state": conv_state, "recurrent_state": state,
            "gdn_q": 4 * m * self.key_dim, "gdn_k": 4 * m * self.key_dim, "gdn_v": 4 * m * self.value_dim,
            "g": 4 * m * heads, "beta": 4 * m * heads, "u": 4 * m * self.value_dim,
            "w": 4 * m * heads * s["linear_key_head_dim"], "qk": 4 * m * heads * DELTA_CHUNK,
            "o": 4 * m * self.value_dim,
            "gated": 2 * m * self.value_dim,
            "q": 2 * queries * self.query, "gate": 2 * ready * self.query, "k": 2 * m * self.key,
            "v": 2 * m * self.key,
            "rope": 4 * s["rotary_dim"], "page_table": 4 * -(-(position + m) // 256), "kv": kv,
            "partial": 4 * m * query_heads * used_splits * (s["head_dim"] + 2), "y": 2 * ready * self.query,
            "router_logits": 4 * m * experts, "shared_gate": 4 * m, "topk_ids": 4 * m * k, "topk_weights": 4 * m * k,
            "order": 4 * m * k, "blocks": 12 * (min(experts, m * k) + m * k // 32),
            "expert_slot": 4 * min(experts, m * k),
            "h": 2 * m * k * s["moe_intermediate_size"], "d": 4 * m * k * hidden,
            "hs": 2 * m * s["shared_expert_intermediate_size"], "s": 4 * m * hidden, "flags": 0,
            "logits": 4 * m * vocab, "adjusted": 4 * m * vocab, "sample_blocks": 16 * m * -(-vocab // 1024),
            "samples": 64 * m, "bias": 0, "mask": 0, "token_counts": 0, "results": 172 * m,
        }  # fmt: skip

    def _other_flops(self, op: str, args: list[int], position: int) -> float:
        """Of what multiplies no weights."""
        s, m = self.sizes, args[0]
        dk, dv, heads = s["linear_key_head_dim"], s["linear_value_head_dim"], s["linear_num_value_heads"]
        if op == "gdn_step":
            return 7.0 * self.state * m
        if op == "gdn_chunk":  # K Kᵀ and Q Kᵀ; T times V and K, the lower half
            return m * heads * DELTA_CHUNK * (4.0 * dk + dk + dv)
        if op == "gdn_scan":  # W S, Q S, Kᵀ D; M * Q Kᵀ times D, the lower half
            return m * heads * (6.0 * dk * dv + DELTA_CHUNK * dv)
        if op == "attn_split":
            return 4.0 * self.query * m * position
        if op == "attn_prefill":
            return 4.0 * self.query * (pairs_from(args[2], position, m) - pairs_from(args[2] + args[3], position, m))
        return 0.0


def pairs_from(key: int, position: int, rows: int) -> float:
    """Pairs of a row and a key that it sees, itself included, among keys from `key` on."""
    last = position + rows - key  # keys that the last row sees
    first = max(1, last - rows + 1)
    return max(0, last - first + 1) * (first + last) / 2


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
    state = 3 * 4 * ledger.state * ledger.sizes["num_linear_layers"]
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
