"""The quick start of the README runs as it stands and prints what a reader expects."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lily.cli import VERBS
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


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)", README.read_text())
    assert len(targets) > 20 and [target for target in targets if not (README.parent / target).exists()] == []


def test_every_page_is_linked() -> None:
    pages = {page.name for page in (README.parent / "docs").glob("*.md")} - {"index.md", "api.md"}
    assert [page for page in sorted(pages) if f"(docs/{page})" not in README.read_text()] == []


def test_every_command_is_named_and_exists() -> None:
    verbs = {verb.__name__.rpartition(".")[2] for verb in VERBS}
    (row,) = re.findall(r"^\| command \| (.*) \|$", README.read_text(), re.MULTILINE)
    assert set(re.findall(r"\w+", row)) - {"lily"} == verbs
    page = (README.parent / "docs" / "cli.md").read_text()
    assert set(re.findall(r"^\| `lily (\w+)` \|", page, re.MULTILINE)) == verbs
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL))
    assert set(re.findall(r"^lily (\w+)", blocks, re.MULTILINE)) <= verbs
