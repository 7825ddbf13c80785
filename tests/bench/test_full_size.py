"""bench/full_size.py on a small checkpoint: what it measures is there and adds up, and too much memory is no record."""

import errno
import json
import os
import sys
from pathlib import Path

import pytest

from bench import full_size
from tools.make_checkpoint import make
from tools.make_synthetic import make_synthetic

CONFIGS = Path(__file__).parents[1] / "model" / "configs"
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this machine has no /proc")


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


def resident_part(path: Path, places: int = 200) -> float:
    """The part of a file that the file cache holds, by looks at some of its pages."""
    held, size = 0, path.stat().st_size
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for place in range(places):
            try:
                held += os.preadv(descriptor, [bytearray(1)], place * size // places, os.RWF_NOWAIT) == 1
            except BlockingIOError:
                pass
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    raise
                pytest.skip("this file system does not tell what it holds in memory")
    finally:
        os.close(descriptor)
    return held / places


def test_a_copied_checkpoint_is_in_memory_once(tmp_path: Path) -> None:
    """The real widths, 4 layers of 8 experts, 0.7 GB: no second copy in the process, and none in the file cache."""
    config = json.loads((CONFIGS / "qwen3.6-35b-a3b-mlx-4bit.json").read_text())
    folder = make_synthetic(tmp_path, config, layers=4, experts=8, unaligned=True)
    (file,) = full_size.weight_files(folder)
    with file.open("rb") as written:
        os.fsync(written.fileno())  # pages that wait for the disk cannot be dropped
    options = full_size.argparse.Namespace(folder=folder, context=16, tokens=2, room=400_000_000)
    metrics = full_size.run_child(options)[0]["metrics"]
    assert metrics["mapped_bytes"] == 0 and metrics["copied_bytes"] >= metrics["file_bytes"] > 600_000_000
    assert metrics["file_bytes"] < metrics["peak_rss_bytes"] < metrics["limit_bytes"]
    assert resident_part(file) < 0.1
