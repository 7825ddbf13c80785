"""How the CPU device's threads share levels, under the thread sanitizer, and that it sees what could go wrong."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CPU = ROOT / "src/lily_core/device/cpu"
SOURCES = ("cores.cpp", "thread_pool.cpp", "tile_scheduler.cpp")
FAULTS = {
    "the job stays open": ("thread_pool.cpp", "is_open_.store(false);", ""),
    "workers do not look whether it is open": ("thread_pool.cpp", "if (is_open_.load()) job_", "job_"),
    "nobody waits for those inside": ("thread_pool.cpp", "spin_until([this] { return inside_.load() == 0; });", ""),
    "a level ends when one group has": ("tile_scheduler.cpp", " && completes(all_groups_, of_group, num_tiles)", ""),
    "a level ends before its writes are seen": (
        "tile_scheduler.cpp",
        "done_epoch_.store(epoch, std::memory_order_release)",
        "done_epoch_.store(epoch, std::memory_order_relaxed)",
    ),
    "tiles are counted before their writes are seen": (
        "tile_scheduler.cpp",
        "std::memory_order_acq_rel",
        "std::memory_order_relaxed",
    ),
    "a thread takes what another took": ("tile_scheduler.cpp", "start + end, std", "start + first, std"),
    "epochs come again": ("tile_scheduler.cpp", "next_epoch_ += levels;", ""),
}


def gxx(*arguments: str | Path) -> None:
    flags = ["-std=c++20", "-O1", "-g", "-fsanitize=thread", "-pthread", f"-I{ROOT}/src/lily_core", f"-I{ROOT}/shaders"]
    subprocess.run(["g++", *flags, *arguments], check=True, capture_output=True, text=True)


def compile_to(folder: Path, source: Path) -> Path:
    made = folder / f"{source.name}.o"
    gxx("-c", source, "-o", made)
    return made


def link(folder: Path, objects: Iterable[Path]) -> Path:
    program = folder / "program"
    gxx(*objects, "-o", program)
    return program


def run(program: Path, timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Ends with the first finding. Where Linux scatters memory widely, the sanitizer starts only if told not to."""
    unscattered = ["setarch", "-R"] if shutil.which("setarch") else []
    if unscattered and subprocess.run([*unscattered, "true"], capture_output=True).returncode:
        unscattered = []  # some containers forbid it
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}
    command = [*unscattered, program]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)


@pytest.fixture(scope="module", autouse=True)
def sanitizer(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where programs with this sanitizer do not build or do not start."""
    folder = tmp_path_factory.mktemp("sanitizer")
    source = folder / "empty.cpp"
    source.write_text("int main() {}")
    try:
        run(link(folder, [source])).check_returncode()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"g++ -fsanitize=thread does not work here: {error}")


@pytest.fixture(scope="module")
def objects(sanitizer: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of the program, by the names of their sources."""
    folder = tmp_path_factory.mktemp("levels")
    sources = [ROOT / "tests/native/levels.cpp", *(CPU / name for name in SOURCES)]
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(lambda source: compile_to(folder, source), sources)
    return {source.name: each for source, each in zip(sources, made, strict=True)}


def test_jobs_of_levels(objects: dict[str, Path], tmp_path: Path) -> None:
    done = run(link(tmp_path, objects.values()), timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(objects: dict[str, Path], tmp_path: Path, fault: str) -> None:
    changed, old, new = FAULTS[fault]
    text = (CPU / changed).read_text()
    assert text.count(old) == 1
    (tmp_path / changed).write_text(text.replace(old, new))
    program = link(tmp_path, (objects | {changed: compile_to(tmp_path, tmp_path / changed)}).values())
    with contextlib.suppress(subprocess.TimeoutExpired):  # a level that never ends is a fault that is seen too
        # On one core, or beside much else, threads may not meet in each run.
        assert any(run(program, timeout=5).returncode != 0 for _ in range(30))
