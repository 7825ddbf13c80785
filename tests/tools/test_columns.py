"""The check of line lengths in C++; `make lint` runs it on the sources."""

import subprocess
import sys
from pathlib import Path

CHECK = Path(__file__).parents[2] / "tools" / "check_columns.py"


def test_a_line_of_131_characters_is_named(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "fine.cpp").write_text("é" * 130 + "\n", encoding="utf-8")
    (tmp_path / "notes.md").write_text("x" * 200)
    assert subprocess.run([sys.executable, CHECK, tmp_path]).returncode == 0
    (tmp_path / "inner" / "long.h").write_text("short\n" + "x" * 131 + "\n")
    done = subprocess.run([sys.executable, CHECK, tmp_path], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path}/inner/long.h:2: 131 characters, more than 130\n"
