"""bench/accuracy.py: its formulas, and that lily agrees with the float64 reference."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from bench import accuracy
from tests.softmetal import control


def test_formulas_on_distributions_known_by_hand() -> None:
    reference = np.log([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]]) + 7  # a constant changes no distribution
    rows = np.log([[0.25, 0.5, 0.25], [0.125, 0.75, 0.125]])
    metrics = accuracy.compare(rows, reference, [0, 1])
    kl = 0.5 * math.log(2) - 0.25 * math.log(2)
    assert metrics["positions"] == 2
    assert metrics["kl_mean"] == pytest.approx(kl / 2)
    assert metrics["kl_max"] == pytest.approx(kl)
    assert metrics["perplexity"] == pytest.approx((0.25 * 0.75) ** -0.5)
    assert metrics["reference_perplexity"] == pytest.approx((0.5 * 0.75) ** -0.5)
    assert metrics["top1_agreement"] == 0.5


def test_ratio_of_rows() -> None:
    reference = np.array([[3.0, 4.0], [1.0, 1.0]])
    metrics = accuracy.compare(reference * [[1.1], [1.0]], reference, [0, 0])
    assert metrics["row_ratio_max"] == pytest.approx(0.1)
    assert metrics["row_ratio_median"] == pytest.approx(0.05)


def test_nan_is_no_accuracy() -> None:
    with pytest.raises(ValueError, match="NaN"):
        accuracy.compare(np.array([[np.nan, 0.0]]), np.zeros((1, 2)), [0])


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["accuracy", *arguments])
    return accuracy.main()


def test_lily_against_float64(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--context", "20", "--positions", "24") == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    # The gates of docs/design/model.md for float32.
    assert float(lines["row_ratio_median"]) <= 1e-5
    assert float(lines["kl_mean"]) <= 1e-9
    assert float(lines["top1_agreement"]) == 1
    assert float(lines["perplexity"]) == pytest.approx(float(lines["reference_perplexity"]), rel=1e-4)
    assert lines["text:"] == "eval.jsonl"


def test_another_dtype_and_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = tmp_path / "own.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 8)
    arguments = ("--text", str(text), "--context", "8", "--positions", "16", "--reference", "lily:cpu:float32")
    assert run(monkeypatch, *arguments, "--dtype", "float16") == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert 0 < float(lines["row_ratio_max"]) < 0.01
    assert lines["text:"] == "own.txt"


@pytest.mark.skipif(not control.is_present(), reason="this build has no software Metal")
def test_one_device_against_another(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--device", "metal", "--dtype", "float16", "--reference", "lily:cpu:float32")
    assert run(monkeypatch, *arguments, "--context", "16", "--positions", "3") == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert lines["positions"] == "3"
    assert 0 < float(lines["row_ratio_max"]) < 0.004  # docs/design/model.md, section 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--reference", "float16"], "'float16' is no reference"),
        (["--reference", "lily:cpu"], "is no reference"),
        (["--dtype", "float8"], "float8"),
        (["--device", "cuda"], "cuda"),
        (["--positions", "1000000"], "tokens; 1000064 are needed"),
        (["--model", "./none"], "there is no folder"),
    ],
)
def test_mistakes_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(monkeypatch, "--context", "64", "--positions", "4", *arguments) == 1
    assert message in capsys.readouterr().err
