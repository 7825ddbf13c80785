"""What one dispatch costs, by its arguments and the sizes of the model: bytes, each once, and FLOPs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from tools.msl.grid import constants

KEY_BLOCK = 32  # keys that attention's tiles take at a time
DELTA_CHUNK = 64  # tokens of the delta rule's chunk
WRITTEN_ONLY = ("kv", "logits")  # bound for both because a dispatch writes a part of them

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


class DispatchCosts:
    """The costs of a model's dispatches, by its sizes."""

    def __init__(self, sizes: Sizes) -> None:
        s = sizes
        self.sizes = s
        self.query = s["num_attention_heads"] * s["head_dim"]
        self.key = s["num_key_value_heads"] * s["head_dim"]
        self.key_dim = s["linear_num_key_heads"] * s["linear_key_head_dim"]
        self.value_dim = s["linear_num_value_heads"] * s["linear_value_head_dim"]
        self.channels = 2 * self.key_dim + self.value_dim
        self.state = self.value_dim * s["linear_key_head_dim"]  # elements of one layer's recurrent state

    def of(self, name: str, args: list[int], ranges: list[Range], position: int) -> Cost:
        """position: tokens before the chunk; of a step, its context."""
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
        used_splits = args[1] if op == "attn_combine" else 0
        if op == "attn_split":  # a row of the longest context: its splits divide the power of two that holds it
            keys_per_split = max(256, 1 << (position - 1).bit_length()) // args[2]
            used_splits = -(-position // keys_per_split)
        vocab = s["vocab_size"]
        # float16 operands are 2 bytes, all else 4: docs/design/kernels.md, "Precision".
        return {
            "step": 36 * m, "tokens": 4 * m, "chunk": 4 * m, "x": 4 * m * hidden, "normed": 2 * m * hidden,
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
