"""Compare the committed stub of lily._core with the extension that was built, or write it.

usage: check_stub.py [--write]

The stub is the output of nanobind's stubgen, sorted and formatted by ruff. Type checkers do not see stubs that are made
while building an editable install, so it is committed; the comparison ignores layout.
"""

import argparse
import ast
import difflib
import subprocess
import sys
import tempfile
from pathlib import Path

STUB = Path(__file__).parents[1] / "python" / "lily" / "_core.pyi"
# What signatures written by hand in the bindings use without a module's name; ruff drops what is not needed.
IMPORTS = "from collections.abc import Callable, Mapping, Sequence\n"


def run(*command: str) -> None:
    subprocess.run([sys.executable, "-m", *command], check=True)


def generate() -> str:
    """The stub of the extension that this Python imports, as text."""
    with tempfile.TemporaryDirectory() as folder:
        raw, made = Path(folder) / "raw.pyi", Path(folder) / "_core.pyi"
        config = STUB.parents[2] / "pyproject.toml"
        run("nanobind.stubgen", "--quiet", "--exclude-docstrings", "--module", "lily._core", "--output-file", str(raw))
        made.write_text(IMPORTS + raw.read_text())
        run("ruff", "check", "--quiet", "--fix-only", "--exit-zero", "--config", str(config), str(made))
        run("ruff", "format", "--quiet", "--config", str(config), str(made))
        return made.read_text()


def differences(committed: str, generated: str) -> list[str]:
    """Lines of a diff from one stub to the other, layout and comments aside; empty when they say the same."""
    ours, theirs = (ast.unparse(ast.parse(text)).splitlines() for text in (committed, generated))
    return list(difflib.unified_diff(ours, theirs, fromfile="committed stub", tofile="extension", lineterm=""))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace the committed stub by the generated one")
    write = parser.parse_args().write
    generated = generate()
    if write:
        STUB.write_text(generated)
        return 0
    lines = differences(STUB.read_text(), generated)
    if lines:
        print(*lines, sep="\n")
        print(
            f"{STUB.name} does not describe the extension: run 'make stub' and commit it",
            file=sys.stderr,
        )
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
