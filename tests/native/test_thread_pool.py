"""The pool of the CPU device under the thread sanitizer, and that it sees what could go wrong."""

import contextlib
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
POOL = ROOT / "src/lily_core/device/cpu/thread_pool.cpp"
FAULTS = {
    "the job stays open": ("is_open_.store(false);", ""),
    "workers do not look whether it is open": ("if (is_open_.load()) job_", "job_"),
    "nobody waits for those inside": ("spin_until([this] { return inside_.load() == 0; });", ""),
}


def build(folder: Path, *sources: str | Path) -> Path:
    program = folder / "program"
    flags = ["-std=c++20", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{ROOT}/src/lily_core", f"-I{ROOT}/shaders"]
    subprocess.run(["g++", *flags, *sources, "-o", program], check=True, capture_output=True, text=True)
    return program


@pytest.fixture(scope="module", autouse=True)
def sanitizer(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where programs with this sanitizer do not build or do not start."""
    folder = tmp_path_factory.mktemp("sanitizer")
    source = folder / "empty.cpp"
    source.write_text("int main() {}")
    try:
        subprocess.run([build(folder, source)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"g++ -fsanitize=thread does not work here: {error}")


def test_jobs_of_levels(tmp_path: Path) -> None:
    program = build(tmp_path, ROOT / "tests/native/thread_pool.cpp", POOL)
    done = subprocess.run([program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(tmp_path: Path, fault: str) -> None:
    old, new = FAULTS[fault]
    text = POOL.read_text()
    assert text.count(old) == 1
    changed = tmp_path / POOL.name
    changed.write_text(text.replace(old, new))
    program = build(tmp_path, ROOT / "tests/native/thread_pool.cpp", changed)
    with contextlib.suppress(subprocess.TimeoutExpired):  # a worker that never leaves is a fault that is seen too
        assert subprocess.run([program], capture_output=True, timeout=10).returncode != 0
