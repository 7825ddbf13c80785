"""What `make` says on a machine that lacks something: one line that names what to install."""

import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def run(script: str, programs: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(programs), **variables}
    return subprocess.run(["/bin/sh", TOOLS / script], env=environment, capture_output=True, text=True)


def program(folder: Path, name: str, text: str) -> str:
    """A program in `folder` that prints `text` whatever it is asked; with no text, one that fails."""
    path = folder / name
    path.write_text(f"#!/bin/sh\necho {text}\n" if text else "#!/bin/sh\nexit 1\n")
    path.chmod(0o755)
    return str(path)


def test_the_newest_python_that_can_build_is_chosen(tmp_path: Path) -> None:
    program(tmp_path, "python3.14", "14 headers")
    program(tmp_path, "python3.13", "")
    chosen = program(tmp_path, "python3.12", "12 ready")
    program(tmp_path, "python3.11", "11 ready")
    done = run("find_python.sh", tmp_path)
    assert (done.returncode, done.stdout.strip()) == (0, chosen)


def test_python_may_be_chosen_by_hand(tmp_path: Path) -> None:
    program(tmp_path, "python3.12", "12 ready")
    chosen = program(tmp_path, "mine", "11 ready")
    assert run("find_python.sh", tmp_path, PYTHON=chosen).stdout.strip() == chosen


@pytest.mark.parametrize("state", ["headers", "venv"])
def test_an_incomplete_python_is_named_with_its_packages(tmp_path: Path, state: str) -> None:
    path = program(tmp_path, "python3.12", f"12 {state}")
    done = run("find_python.sh", tmp_path)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert path in done.stderr
    assert "python3.12-venv python3.12-dev" in done.stderr


def test_a_machine_without_python_is_told_so(tmp_path: Path) -> None:
    program(tmp_path, "python3", "")
    done = run("find_python.sh", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("lily: no Python 3.11 or newer found")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("compiler", "words"), [(None, "no C++ compiler found"), ("", "does not compile C++20")])
def test_a_missing_or_old_compiler_is_named(tmp_path: Path, compiler: str | None, words: str) -> None:
    if compiler is not None:
        program(tmp_path, "c++", compiler)
    done = run("find_compiler.sh", tmp_path)
    assert done.returncode == 1
    assert words in done.stderr
    assert "apt-get install g++" in done.stderr
    assert len(done.stderr.splitlines()) == 1
