"""The ledger of the 35B's programs, against floors that follow from its config.json alone."""

import json
import subprocess
import sys
from typing import Any

import pytest

from bench.dispatch_costs import op_of
from bench.ledger import CONFIG, PUBLISHED, Ledger
from tools.msl.preamble import FORMS

STATE = 60 << 20  # bytes of recurrent state: docs/design/model.md, section 5
PUBLISHED_CHUNK_DISPATCHES = 1830
THREADGROUP_LIMIT = 32_768
CHUNKS = (512, 1024)  # tokens of a prefill chunk on GPUs with little and with much memory: docs/design/metal.md


class Floor:
    """What a decoded token, and a prompt, of the 35B must read at least."""

    def __init__(self, config: dict[str, Any]) -> None:
        c = config["text_config"]
        hidden = c["hidden_size"]
        query, key = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
        value = c["linear_num_value_heads"] * c["linear_value_head_dim"]
        channels = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"] + value
        self.attention_layers = c["layer_types"].count("full_attention")
        linear_layers = c["layer_types"].count("linear_attention")
        self.query_heads, self.head_dim = c["num_attention_heads"], c["head_dim"]
        delta = channels + value + 2 * c["linear_num_value_heads"]  # rows of what reads the hidden state
        attention = 2 * query + 2 * key
        expert = 3 * c["moe_intermediate_size"] * hidden
        shared = 3 * c["shared_expert_intermediate_size"] * hidden
        four_bit = linear_layers * (delta + value) * hidden + self.attention_layers * (attention + query) * hidden
        four_bit += c["num_hidden_layers"] * (c["num_experts_per_tok"] * expert + shared) + c["vocab_size"] * hidden
        eight_bit = c["num_hidden_layers"] * (c["num_experts"] + 1) * hidden  # the router and the shared expert's gate
        pair = 4 / 64  # bytes of scale and bias, in bf16, for a weight
        self.weight_bytes = four_bit * (0.5 + pair) + eight_bit * (1 + pair)
        self.kv_bytes = self.attention_layers * 2 * key * 2  # a position, in float16

    def plain_kv_traffic(self, tokens: int) -> int:
        """Bytes of keys and values that 16-row tiles of one query head read, in blocks of 32 keys."""
        ends = range(16, tokens + 1, 16)
        keys = sum(-(-end // 32) * 32 for end in ends)
        return self.attention_layers * self.query_heads * keys * 2 * self.head_dim * 2


@pytest.fixture(scope="module")
def floor() -> Floor:
    return Floor(json.loads(CONFIG.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return Ledger(json.loads(CONFIG.read_text(encoding="utf-8")), 131_072)


def test_decode_has_few_dispatches_and_levels(ledger: Ledger) -> None:
    row = ledger.decode(256)
    assert row.total.dispatches <= 340 and row.levels <= 270


def test_decode_reads_the_weights_once(ledger: Ledger, floor: Floor) -> None:
    assert floor.weight_bytes == pytest.approx(1669.6e6 - 2.3e6, rel=1e-3)  # docs/design/model.md, without the norms
    assert ledger.decode(256).total.weight_bytes == pytest.approx(floor.weight_bytes, rel=0.01)


def test_decode_reads_and_writes_the_state_once(ledger: Ledger) -> None:
    layers = [
        op_of(name)
        for name, _, _, ranges in ledger.outlines[512].decode(1, 256)
        for r in ranges
        if r[0] == "recurrent_state"
    ]
    assert layers == ["gdn_step"] * ledger.sizes["num_linear_layers"]
    step = ledger.decode(256).kernels["gdn_step"]
    assert STATE <= step.bytes_written <= 1.1 * STATE  # and the convolution's state
    assert STATE <= step.bytes_read <= 1.15 * STATE  # and its weights


@pytest.mark.parametrize("context", [256, 32_768])
def test_decode_reads_keys_and_values_once(ledger: Ledger, floor: Floor, context: int) -> None:
    assert floor.kv_bytes == 20_480  # docs/design/model.md
    assert ledger.decode(context).total.kv_bytes == pytest.approx(floor.kv_bytes * context, rel=0.05)


def test_chunks_are_those_of_the_gpus(ledger: Ledger) -> None:
    assert ledger.chunk_lengths == list(CHUNKS)


@pytest.mark.parametrize("chunk_tokens", CHUNKS)
@pytest.mark.parametrize("context", [32_768, 131_072])
def test_prefill_shares_keys_and_values_between_heads(
    ledger: Ledger, floor: Floor, context: int, chunk_tokens: int
) -> None:
    """At most a quarter of what tiles of 16 rows and one head read."""
    traffic = ledger.prefill(context, chunk_tokens).total.kv_traffic_bytes
    assert floor.kv_bytes * context * context / 2 / 512 < traffic <= floor.plain_kv_traffic(context) / 4


@pytest.mark.parametrize(
    ("context", "chunk_tokens", "most"),
    [(32_768, 512, 651), (32_768, 1024, 691), (131_072, 512, 751), (131_072, 1024, 901)],
)
def test_prefill_takes_half_of_the_published_dispatches_a_chunk(
    ledger: Ledger, context: int, chunk_tokens: int, most: int
) -> None:
    row = ledger.prefill(context, chunk_tokens)
    assert row.chunk_dispatches == most <= PUBLISHED_CHUNK_DISPATCHES / 2
    # Attention is run over the keys that there are: one more dispatch a layer where a stretch ends.
    chunks, layers = context // chunk_tokens, ledger.sizes["num_attention_layers"]
    stretch = next(
        args[3] for name, _, args, _ in ledger.outlines[chunk_tokens].prefill(chunk_tokens) if "attn_prefill" in name
    )
    attention = sum(-(-end // stretch) for end in range(chunk_tokens, context + 1, chunk_tokens))
    assert row.total.dispatches == chunks * 611 + layers * attention


@pytest.mark.parametrize("chunk_tokens", CHUNKS)
def test_carried_sums_of_attention_are_a_small_part(ledger: Ledger, chunk_tokens: int) -> None:
    """Between two stretches of keys the sums of every row are written and read once."""
    cost = ledger.prefill(131_072, chunk_tokens).kernels["attn_prefill"]
    layers = ledger.sizes["num_attention_layers"]
    queries = 2 * (2 + 1) * ledger.costs.query * 131_072 * layers  # q a few times, gate, y
    assert 0 < cost.bytes_written < cost.bytes_read < 0.03 * cost.kv_traffic_bytes + queries


def test_no_kernel_materialises_expanded_weights(ledger: Ledger) -> None:
    """What the programs write is activations, state and a plan of the experts (docs/design/kernels.md)."""
    s = ledger.sizes
    hidden, chosen = s["hidden_size"], s["num_experts_per_tok"]
    heads, dk, dv = s["linear_num_value_heads"], s["linear_key_head_dim"], s["linear_value_head_dim"]
    key_heads, width = s["linear_num_key_heads"], s["head_dim"]
    query, key = s["num_attention_heads"] * width, s["num_key_value_heads"] * width
    a_row = {
        "x": 4 * hidden, "normed": 2 * hidden, "qkv": 2 * (2 * key_heads * dk + heads * dv), "z": 2 * heads * dv,
        "ba": 4 * 2 * heads, "gdn_q": 4 * key_heads * dk, "gdn_k": 4 * key_heads * dk, "gdn_v": 4 * heads * dv,
        "g": 4 * heads, "beta": 4 * heads, "u": 4 * heads * dv, "w": 4 * heads * dk, "qk": 4 * heads * 64,
        "o": 4 * heads * dv, "gated": 2 * heads * dv, "q": 2 * query, "gate": 2 * query, "k": 2 * key, "v": 2 * key,
        "y": 2 * query, "router_logits": 4 * s["num_experts"], "shared_gate": 4, "topk_ids": 4 * chosen,
        "topk_weights": 4 * chosen, "order": 4 * chosen, "hs": 2 * s["shared_expert_intermediate_size"],
        "h": 2 * chosen * s["moe_intermediate_size"], "d": 4 * chosen * hidden, "s": 4 * hidden,
        "logits": 4 * s["vocab_size"], "adjusted": 4 * s["vocab_size"], "token_counts": 4 * s["vocab_size"],
    }  # fmt: skip
    small = {"blocks", "flags", "sample_blocks", "tokens", "results"}  # a plan, flags, what sampling leaves
    state = {"kv", "conv_state", "recurrent_state", "partial"}
    longest_chunk, written = max(CHUNKS), set()
    outline = ledger.outlines[longest_chunk]
    for program in (outline.decode(8, 131_072), outline.prefill(longest_chunk)):
        for kernel, _, _, ranges in program:
            for buffer, length, access in ranges:
                if access != "r":
                    written.add(buffer)
                    limit = longest_chunk * a_row.get(buffer, 0) + (1 << 16) * (buffer in small)
                    assert buffer in state or length <= limit, (kernel, buffer, length)
    assert {"d", "h", "qkv", "kv", "logits"} <= written


def test_every_kernel_fits_in_threadgroup_memory(ledger: Ledger) -> None:
    rows = ledger.decode(256), ledger.prefill(512, 512)
    needs = {
        op: [ledger.threadgroup_bytes(names, form) for form in FORMS] for row in rows for op, names in row.names.items()
    }
    assert len(needs) == 36 and all(max(sizes) <= THREADGROUP_LIMIT for sizes in needs.values())
    assert min(needs["attn_prefill"]) > 0 and min(needs["experts_up_tile"]) > 0


@pytest.mark.parametrize("chunk_tokens", CHUNKS)
def test_prefill_of_a_chunk(ledger: Ledger, chunk_tokens: int) -> None:
    row = ledger.prefill(chunk_tokens, chunk_tokens)
    assert (row.total.dispatches, row.levels) == (621, 541)  # as docs/design/kernels.md says


@pytest.mark.parametrize("chunk_tokens", CHUNKS)
def test_prefill_of_a_chunk_and_a_piece(ledger: Ledger, chunk_tokens: int) -> None:
    row = ledger.prefill(chunk_tokens + 100, chunk_tokens)
    gflop_per_token = row.total.flops / row.context / 1e9
    assert gflop_per_token == pytest.approx(5.05 + 163_840 * row.context / 2 / 1e9, rel=0.02)


@pytest.mark.parametrize("chunk_tokens", CHUNKS)
def test_attention_multiplies_each_row_with_its_keys_once(ledger: Ledger, chunk_tokens: int) -> None:
    flops = ledger.prefill(32_768, chunk_tokens).kernels["attn_prefill"].flops
    assert flops == 4 * ledger.costs.query * ledger.sizes["num_attention_layers"] * 32_768 * 32_769 / 2


def ledger_prints(*arguments: str) -> str:
    command = [sys.executable, "-m", "bench.ledger", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_json() -> None:
    data = json.loads(ledger_prints("--contexts", "256", "4096", "--json"))
    assert [row["context"] for row in data["decode"]] == [256, 4096]
    assert [(row["chunk_tokens"], row["context"]) for row in data["prefill"]] == [
        (length, context) for length in CHUNKS for context in (256, 4096)
    ]
    counted = ["context", "dispatches", "levels", "bytes_read", "bytes_written", "flops"]
    for program, keys in (("decode", counted), ("prefill", [*counted, "chunk_tokens", "chunk_dispatches"])):
        for row in data[program]:
            assert list(row) == keys
            assert all(type(value) is int and value > 0 for value in row.values())


def test_text(ledger: Ledger) -> None:
    """Tables of both programs and of their kernels; times are called a prediction, beside what was published."""
    text = ledger_prints("--contexts", "256", "1024", "--bandwidth", "239e9")
    lines = [line.split() for line in text.splitlines()]
    step, chunk = ledger.decode(256).total, ledger.prefill(256, 512).total
    assert ["256", "304", "264"] in [line[:3] for line in lines]
    up = next(line for line in lines if line[:1] == ["experts_up"])
    assert up[1:4] == ["40", f"{ledger.decode(256).kernels['experts_up'].bytes_read / 1e6:,.1f}", up[3]]
    assert up[5:] == [f"{ledger.threadgroup_bytes(['experts_up_q4g64_f16'], form):,}" for form in FORMS]
    assert f"{step.bytes_read / 1e9:,.3f}" in text and f"{chunk.flops / 1e9:,.1f}" in text
    assert "a PREDICTION for" in text and "not a measurement" in text
    assert text.count("predicted tokens/s") == 3
    half = next(float(line[-1]) for line in lines if line[:2] == ["256", "304"])
    assert half < 0.7 / ledger.decode(256).seconds  # of the default bandwidth
    calibration = text[text.index("Calibration") :]
    for decode, prefill in PUBLISHED.values():
        assert f"{decode:,.1f}" in calibration and f"{prefill:,}" in calibration
