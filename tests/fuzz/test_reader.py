"""The readers of checkpoint files under AddressSanitizer: the kept corpus, and a short search where clang is there."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tools.fuzz import programs, run

# By the profile of hypothesis (tests/conftest.py): all targets together 20 seconds, or half an hour in `make soak`.
SECONDS = 7 if settings.default is None or settings.default.max_examples < 1000 else 600


needs_search = pytest.mark.skipif(
    not programs.can_search(), reason="no libFuzzer: apt-get install clang libclang-rt-dev"
)


@pytest.mark.parametrize("target", programs.TARGETS)
def test_corpus(target: str) -> None:
    assert run.replay(target) == len(list(run.corpus(target).iterdir())) > 20


@needs_search
@pytest.mark.parametrize("target", programs.TARGETS)
def test_search(target: str, tmp_path: Path) -> None:
    program = programs.build(target, for_search=True)
    done = run.search(target, program, tmp_path, seconds=SECONDS, runs=-1, processes=1)
    assert done["executions"] > done["corpus_files"]


@needs_search
def test_a_search_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed programs, a bare Python and copies of two folders are enough; the record names the commit they are of."""
    monkeypatch.setattr(programs, "describe", lambda: {"commit": "0123456789abcdef", "compiler": "clang version 14"})
    programs.pack(tmp_path / "built")
    for name in ("tools", "bench"):
        shutil.copytree(programs.ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "nano"))
    command = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, '.'); sys.argv[0] = 'run'; "
               "from tools.fuzz.run import main; sys.exit(main())"]  # fmt: skip
    command += ["--built", "built", "header_json=2000", "safetensors=1000", "--processes", "2", "--record", "records"]
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}  # neither git nor a compiler
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=600)
    (path,) = (tmp_path / "records").iterdir()
    record = json.loads(path.read_text())
    assert record["code"] == {"commit": "0123456789abcdef", "compiler": "clang version 14"}
    assert record["executions"] == sum(arm["metrics"]["executions"] for arm in record["arms"].values()) >= 3000
    assert record["findings"] == 0
    assert record["arms"]["safetensors"]["metrics"]["processes"] == 2


def test_a_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target with a fault ends the replay: the sanitizers are on, and the exit status counts."""
    (tmp_path / "faulty.cpp").write_text(
        "#include <cstddef>\n#include <cstdint>\n"
        'extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {\n'
        "  volatile auto* copy = new std::uint8_t[size];\n  delete[] copy;\n  copy[0] = *data;\n  return 0;\n}\n"
    )
    shutil.copy(programs.FOLDER / "replay.cpp", tmp_path)
    (tmp_path / "corpus" / "faulty").mkdir(parents=True)
    (tmp_path / "corpus" / "faulty" / "input").write_bytes(b"12345")
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setattr(programs, "FOLDER", tmp_path)
    monkeypatch.setattr(programs, "BUILD", tmp_path / "build")
    monkeypatch.setattr(programs, "SOURCES", [])
    with pytest.raises(programs.FuzzError, match="heap-use-after-free"):
        run.replay("faulty")
