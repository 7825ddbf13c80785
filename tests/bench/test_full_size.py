"""bench/full_size.py on a small checkpoint: what it measures is there and adds up, and too much memory is no record."""

import sys
from pathlib import Path

import pytest

from bench import full_size
from tools.make_checkpoint import make

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


@pytest.mark.parametrize("aligned", [True, False])
def test_all_is_measured(tmp_path: Path, aligned: bool) -> None:
    folder = make(tmp_path, size="tiny", aligned=aligned)
    result = full_size.measure(folder, 16, 4, full_size.ROOM_BYTES)
    metrics = result["metrics"]
    assert metrics["file_bytes"] == (folder / "model.safetensors").stat().st_size
    assert metrics["limit_bytes"] == metrics["file_bytes"] + full_size.ROOM_BYTES
    assert (metrics["mapped_bytes"] > metrics["copied_bytes"]) == aligned
    assert all(metrics[name] > 0 for name in metrics if name not in ("mapped_bytes", "peak_machine_bytes"))
    assert metrics["peak_rss_bytes"] >= metrics["peak_anonymous_bytes"] >= metrics["anonymous_after_load_bytes"] > 0


def test_it_prints_and_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make(tmp_path, size="nano", aligned=True)
    monkeypatch.setattr(sys, "argv", ["full_size", str(folder), "--context", "8", "--tokens", "2", "--cold"])
    assert full_size.main() == 0
    assert "decode_tokens_per_second" in capsys.readouterr().out
    # The interpreter alone is larger than the file and 20 MB.
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--room", "20000000"])
    assert full_size.main() == 1
    assert "above the limit" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*sys.argv[:-1], "1000"])
    assert full_size.main() == 1
    assert "MemoryLimitError" in capsys.readouterr().err
