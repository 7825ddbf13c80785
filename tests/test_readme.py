"""The quick start of the README runs as it stands and prints what a reader expects."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.quick_start import README, quick_start


def test_quick_start_runs(tmp_path: Path) -> None:
    script = tmp_path / "quick_start.py"
    script.write_text(quick_start(README.read_text()))
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "A compiler is a program that translates source code into machine code." in done.stdout
    assert "blue, green, red" in done.stdout


@pytest.mark.parametrize("text", ["no code", "```python\na\n```\n```python\nb\n```\n"])
def test_a_readme_without_one_quick_start_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="one Python block"):
        quick_start(text)
