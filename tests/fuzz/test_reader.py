"""The readers of checkpoint files under AddressSanitizer: the kept corpus, and a short search where clang is there."""

import shutil
from pathlib import Path

import pytest
from hypothesis import settings

from tools.fuzz import run

# By the profile of hypothesis (tests/conftest.py): all targets together 20 seconds, or half an hour in `make soak`.
SECONDS = 7 if settings.default is None or settings.default.max_examples < 1000 else 600


@pytest.mark.parametrize("target", run.TARGETS)
def test_corpus(target: str) -> None:
    assert run.replay(target) == len(list(run.corpus(target).iterdir())) > 20


@pytest.mark.parametrize("target", run.TARGETS)
def test_search(target: str) -> None:
    if not run.can_search():
        pytest.skip("no libFuzzer: apt-get install clang libclang-rt-dev")
    done = run.search(target, seconds=SECONDS)
    assert done["executions"] > done["corpus_files"]


def test_a_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target with a fault ends the replay: the sanitizers are on, and the exit status counts."""
    (tmp_path / "faulty.cpp").write_text(
        "#include <cstddef>\n#include <cstdint>\n"
        'extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {\n'
        "  volatile auto* copy = new std::uint8_t[size];\n  delete[] copy;\n  copy[0] = *data;\n  return 0;\n}\n"
    )
    shutil.copy(run.FOLDER / "replay.cpp", tmp_path)
    (tmp_path / "corpus" / "faulty").mkdir(parents=True)
    (tmp_path / "corpus" / "faulty" / "input").write_bytes(b"12345")
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setattr(run, "BUILD", tmp_path / "build")
    monkeypatch.setattr(run, "SOURCES", [])
    with pytest.raises(run.FuzzError, match="heap-use-after-free"):
        run.replay("faulty")
