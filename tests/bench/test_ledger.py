"""The ledger of the 35B's programs, against the floors of docs/design/model.md, section 5."""

import json
import subprocess
import sys

import pytest

from bench.ledger import CHUNK_TOKENS, CONFIG, Ledger, op_of

WEIGHT_FLOOR = 1669.6e6  # bytes a decoded token reads, without the state
KV_FLOOR = 20_480  # bytes a position
STATE = 60 << 20  # bytes of recurrent state


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return Ledger(json.loads(CONFIG.read_text(encoding="utf-8")), 131_072)


def test_decode_has_few_dispatches_and_levels(ledger: Ledger) -> None:
    row = ledger.decode(256)
    assert row.total.dispatches <= 340 and row.levels <= 270


def test_decode_reads_the_weights_once(ledger: Ledger) -> None:
    assert ledger.decode(256).total.weight_bytes == pytest.approx(WEIGHT_FLOOR, rel=0.01)


def test_decode_reads_and_writes_the_state_once(ledger: Ledger) -> None:
    layers = [
        op_of(name)
        for name, _, _, ranges in ledger.recording.decode(1, 256)
        for r in ranges
        if r[0] == "recurrent_state"
    ]
    assert layers == ["gdn_step"] * ledger.sizes["num_linear_layers"]
    step = ledger.decode(256).kernels["gdn_step"]
    assert STATE <= step.bytes_written <= 1.1 * STATE  # and the convolution's state
    assert STATE <= step.bytes_read <= 1.15 * STATE  # and its weights


@pytest.mark.parametrize("context", [256, 32_768])
def test_decode_reads_keys_and_values_once(ledger: Ledger, context: int) -> None:
    assert ledger.decode(context).total.kv_bytes == pytest.approx(KV_FLOOR * context, rel=0.05)


@pytest.mark.parametrize("context", [32_768, 131_072])
def test_prefill_shares_keys_and_values_between_heads(ledger: Ledger, context: int) -> None:
    """At most a quarter of what tiles of 16 rows and one head read."""
    layers = ledger.sizes["num_attention_layers"]
    begins = range(0, context, CHUNK_TOKENS)
    plain = layers * sum(ledger.kv_traffic(begin, CHUNK_TOKENS, tile_rows=16, tile_heads=1) for begin in begins)
    assert 0 < ledger.prefill(context).total.kv_traffic_bytes <= plain / 4


def test_prefill_of_a_chunk(ledger: Ledger) -> None:
    row = ledger.prefill(512)
    assert (row.total.dispatches, row.levels) == (651, 541)  # as docs/design/kernels.md says


def test_prefill_of_a_chunk_and_a_piece(ledger: Ledger) -> None:
    row = ledger.prefill(CHUNK_TOKENS + 100)
    assert row.chunk_dispatches <= 915
    gflop_per_token = row.total.flops / row.context / 1e9
    assert gflop_per_token == pytest.approx(5.05 + 163_840 * row.context / 2 / 1e9, rel=0.02)


def test_json() -> None:
    command = [sys.executable, "-m", "bench.ledger", "--contexts", "256", "--json"]
    data = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for program in ("decode", "prefill"):
        (row,) = data[program]
        assert list(row) == ["context", "dispatches", "levels", "bytes_read", "bytes_written", "flops"]
        assert row["context"] == 256 and all(value > 0 for value in row.values())
