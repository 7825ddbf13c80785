"""The examples of the pages run as they stand, block after block, and print what the page shows.

`python` blocks of a page share their variables, `sh` blocks their folder. `console` blocks need what a test has not: a
network, a password, a terminal, another model.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>[^\n`]*)\n.*?^(?P=fence)$", re.MULTILINE | re.DOTALL)
KNOWN = {"python", "sh", "text", "console", "json", "toml", "jinja"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for language, code, shown in BLOCK.findall(page.read_text()):
        if language == "sh":
            assert run_in_shell(code, tmp_path) == shown
            continue
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, page.name, "exec"), namespace)
        assert printed.getvalue() == shown


def run_in_shell(code: str, folder: Path) -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_has_a_language_that_says_whether_it_runs(page: Path) -> None:
    languages = {match["language"] for match in FENCE.finditer(page.read_text())}
    assert {language for language in languages if not language.startswith("{")} <= KNOWN


def test_output_that_differs_is_found(tmp_path: Path) -> None:
    assert run_in_shell("echo one; echo two >&2", tmp_path) == "one\n"
    with pytest.raises(AssertionError, match="nothing"):
        run_in_shell("ls nothing", tmp_path)
