from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from lily import Engine, MemoryLimitError, __version__
from lily.cli import main
from lily.cli.doctor import metal_kernels, needed_bytes, wired_limit
from lily.memory import parse_bytes
from tests.cli.test_cli import NANO


def test_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["machine"]["logical_processors"] >= 1 and report["versions"]["lily"] == __version__
    assert report["devices"]["cpu"].endswith("kernels") and report["devices"]["cpu_kernels"].startswith("prebuilt")
    assert "baseline" in report["devices"]["cpu_instruction_sets"]
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "processor" in out and "GiB" in out and "\nmodel" not in out


def test_the_metal_device(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LILY_METAL_DEBUG", "timeout=30")
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    if report["devices"]["metal"].startswith("no: "):
        pytest.skip(report["devices"]["metal"])
    form = report["devices"]["metal"].split(", ")[2]
    assert form in ("tensor operations", "simdgroup matrices")
    if sys.platform != "darwin":
        assert report["devices"]["metal"].startswith("Software Metal (a double for tests), ")
    assert "tensor operations" in report["devices"]["metal_matrix_form"]
    assert report["devices"]["metal_may_hold_bytes"] >= 1 << 30
    assert report["machine"]["variables"]["LILY_METAL_DEBUG"] == "timeout=30"


def test_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *NANO, "--json"]) == 0
    model = json.loads(capsys.readouterr().out)["model"]
    assert model["stop_ids"] == {"4072": "<|im_end|>", "4070": "<|endoftext|>"}
    assert model["context_that_fits"] == 1024 and model["takes_at_most_bytes"]["weights"] > 0
    assert list(model["needs_at_least_bytes"]) == ["1024", "4096", "8192"]
    assert main(["doctor", *NANO]) == 0
    assert model["sequences_at_once"] >= 2 and model["prefix_cache_limit_bytes"] > 0
    lines = dict(line.strip().split("  ", 1) for line in capsys.readouterr().out.splitlines() if line[:2] == "  ")
    assert re.match(r" +1,024 tokens: \d+\.\d\d MiB, 4,096 tokens: ", lines["needs at least"])
    for name in ("takes at most", "load report"):  # no number of bytes without its unit
        assert re.search(r" (weights|copied) 7\.68 MiB", lines[name]) and not re.search(r"\d{4}|_bytes", lines[name])


@pytest.mark.parametrize("context", [256, 1000, 8192])
def test_what_a_context_needs_is_enough_and_hardly_more(context: int) -> None:
    options = {"max_context": context, "prefix_cache_bytes": 0, "progress": False}
    with Engine("lily-nano", **options) as engine:  # type: ignore[arg-type]
        needed = needed_bytes(engine, context)
    with Engine("lily-nano", memory_limit=needed, **options) as engine:  # type: ignore[arg-type]
        assert engine.max_context == context
    with pytest.raises(MemoryLimitError):
        Engine("lily-nano", memory_limit=int(needed * 0.95), **options)  # type: ignore[arg-type]


def test_a_model_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "lily-nano", "--memory-limit", "20MiB", "--json"]) == 1
    model = json.loads(capsys.readouterr().out)["model"]
    assert model["fits"] is False and model["required_bytes"] > model["limit_bytes"] == parse_bytes("20MiB")
    assert "memory_limit" in model["problem"]


def test_selftest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--selftest", "--json", "--max-context", "512"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"]["summary"].startswith("Engine('lily-nano'")
    assert report["selftest"]["result"] == "passed" and report["selftest"]["failures"] == []
    assert report["selftest"]["comparisons"] == report["selftest"]["passed"] > 200
    assert report["selftest"]["kernels_without_a_case"] == []


def test_selftest_reports_a_fault(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from lily import selftest

    wrong = {name: values + values.dtype.type(1) for name, values in selftest._references().items()}
    monkeypatch.setattr(selftest, "_references", lambda: wrong)
    assert main(["doctor", "--selftest", "--max-context", "512"]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out and "topk_f32/topk_ids: 100.0% of the values differ" in out


def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device", "cuda", "--selftest"]) == 1
    assert 'device "cuda" is not available' in capsys.readouterr().err


def test_kept_metal_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "Library" / "Caches"))
    assert metal_kernels().startswith("compiled at the first start")
    folder = tmp_path / "Library" / "Caches" / "lily"
    folder.mkdir(parents=True)
    (folder / "metal-0123456789abcdef.archive").write_bytes(b"x" * 2048)
    assert metal_kernels().startswith(f"prebuilt, 2.00 KiB in {folder}, files: 1 ")


GIB = 1 << 30


@pytest.mark.parametrize(
    ("total", "limit_mb", "command"),
    [
        (64 * GIB, 0, "sudo sysctl iogpu.wired_limit_mb=57344"),
        (16 * GIB, 0, "sudo sysctl iogpu.wired_limit_mb=12288"),
        (64 * GIB, 49152, "sudo sysctl iogpu.wired_limit_mb=57344"),
        (64 * GIB, 60000, None),
    ],
)
def test_the_wired_limit_of_a_mac(total: int, limit_mb: int, command: str | None) -> None:
    facts = wired_limit(total, limit_mb)
    assert facts.get("wired_limit_command") == command
    assert ("default" in str(facts["wired_limit"])) == (limit_mb == 0)
