from __future__ import annotations

import csv
import json
import shlex

import pytest

from lily.cli import main
from lily.config import load_config
from lily.floors import prefill_operations
from lily.hub import find_model
from lily.machine import logical_processors, read_bytes_per_second
from tests.cli.test_cli import NANO

SHORT = ["--contexts", "64,130", "--tokens", "4", "--runs", "2", "--users", "3"]


def test_csv_under_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *NANO, *SHORT, "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    header = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    assert header["model"] == "lily-nano" and "date" in header
    assert header["logical_processors"] == str(logical_processors())
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert not header.keys() & rows[0].keys()
    assert [(row["test"], row["context_tokens"]) for row in rows] == [
        (test, str(context + (32 if test == "burst" else 0)))
        for context in (64, 130)
        for test in ("prefill", "decode", "warm", "burst")
    ]
    for row in rows:
        context = int(row["context_tokens"])
        expected = {"prefill": 0, "decode": 0, "warm": context - 1, "burst": context - 32}
        assert int(row["cached_tokens"]) == expected[row["test"]]
        assert 0 < float(row["median_ms"]) <= float(row["p95_ms"])
        assert bool(row["read_gb_per_second"]) == bool(row["part_of_read_rate"]) == (row["test"] == "decode")
        assert bool(row["multiply_gop_per_second"]) == bool(row["part_of_multiply_rate"]) == (row["test"] == "prefill")
        assert bool(row["tokens_per_second"]) == (row["test"] in ("prefill", "decode"))


def test_json_and_no_cache(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", *NANO, *SHORT, "--device", "cpu", "--prefix-cache-bytes", "0", "--json"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["header"]["command"] == shlex.join(["lily", *arguments])
    assert [row["test"] for row in report["rows"]] == ["prefill", "decode"] * 2
    header, (prefill, decode) = report["header"], report["rows"][:2]
    rate = decode["read_gb_per_second"] / header["machine_read_gb_per_second"]
    assert decode["part_of_read_rate"] == pytest.approx(rate, rel=0.01)
    rate = prefill["multiply_gop_per_second"] / header["machine_multiply_gop_per_second"]
    assert prefill["part_of_multiply_rate"] == pytest.approx(rate, rel=0.01)
    operations = prefill_operations(load_config(find_model("lily-nano")), prefill["context_tokens"])
    assert prefill["multiply_gop_per_second"] * prefill["median_ms"] * 1e6 == pytest.approx(operations)


def test_other_devices_are_not_measured_by_the_processor(capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--contexts", "16", "--tokens", "1", "--runs", "1", "--prefix-cache-bytes", "0"]
    if main(["bench", *NANO, *short, "--device", "metal", "--json"]) != 0:
        error = capsys.readouterr().err
        assert "not available" in error
        pytest.skip(error)
    report = json.loads(capsys.readouterr().out)
    assert "machine_multiply_gop_per_second" not in report["header"]
    assert report["rows"][0]["multiply_gop_per_second"] > 0
    assert report["rows"][0]["part_of_multiply_rate"] is None


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--contexts", "64,x"], 2, "'x' is no number above 0"),
        (["--runs", "0"], 2, "'0' is no number above 0"),
        (["--contexts", "1000"], 1, "are more than the 1024 that fit"),
        (["--max-context", "100"], 1, "--max-context 100 has no room"),
    ],
)
def test_what_cannot_be_measured(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert main(["bench", *NANO, *arguments]) == code
    assert words in capsys.readouterr().err


def test_the_read_rate_is_plausible() -> None:
    assert 1e8 < read_bytes_per_second(1 << 24) < 1e13
