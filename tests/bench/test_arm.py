"""What arms print and what they are fed."""

import json
import subprocess
import sys

import pytest

from bench import arm
from bench.run import parse_arm
from bench.runner import ROOT, Arm, parse_result
from lily.config import load_config
from lily.floors import prefill_operations
from lily.hub import find_model


def test_prompt_is_the_same_everywhere_and_keeps_off_the_special_tokens() -> None:
    token_ids = arm.prompt(4096, 4096)
    assert token_ids[:4] == [2774, 1113, 3276, 2790]
    assert max(token_ids) < 3840
    assert len(set(token_ids)) > 2000


def test_report_is_what_the_runner_reads(capsys: pytest.CaptureFixture[str]) -> None:
    arm.report([1, 2], {"speed": 2.0})
    result = parse_result(Arm("A", ()), capsys.readouterr().out)
    assert result.metrics == {"speed": 2.0}
    arm.report([12], {"speed": 2.0})
    assert json.loads(capsys.readouterr().out)["digest"] != result.digest


def test_an_arm_may_be_any_command() -> None:
    assert parse_arm("peer=python x.py --a 'b c'") == Arm("peer", ("python", "x.py", "--a", "b c"))


@pytest.mark.parametrize("text", ["peer", "=x", "peer=", "peer=  "])
def test_an_arm_without_name_or_command_is_refused(text: str) -> None:
    with pytest.raises(Exception, match="NAME=COMMAND"):
        parse_arm(text)


def test_the_cache_arm_repeats_itself_and_finds_the_cache() -> None:
    command = (
        sys.executable,
        "-m",
        "bench.cache",
        "--context",
        "80",
        "--users",
        "3",
        "--turns",
        "6",
        "--system-bytes",
        "200",
    )
    runs = [
        parse_result(Arm("A", command), subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout)
        for _ in range(2)
    ]
    assert runs[0].digest == runs[1].digest
    metrics = runs[0].metrics
    assert metrics["warm_computed_tokens"] == 1
    assert 0 < metrics["snapshot_mib_after_turns"] < metrics["snapshot_limit_mib"]
    assert metrics["file_mib"] > metrics["state_mib"] > 0


def test_the_prefill_arm_says_which_part_of_the_multiply_rate_it_reaches() -> None:
    command = (sys.executable, "-m", "bench.prefill", "--device", "cpu", "--context", "64")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    metrics = parse_result(Arm("A", command), done.stdout).metrics
    operations = prefill_operations(load_config(find_model("lily-nano")), 64)
    assert metrics["multiply_gop_per_second"] * metrics["time_to_first_token_ms"] * 1e6 == pytest.approx(operations)
    assert 0 < metrics["part_of_multiply_rate"] < 2
