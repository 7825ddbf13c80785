"""Check that no line of the C++ sources is longer than 130 characters.

usage: check_columns.py [FOLDER ...]
"""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = (ROOT / "src", ROOT / "shaders", ROOT / "tests", ROOT / "tools")
SUFFIXES = {".cpp", ".h"}
LIMIT = 130


def long_lines(folder: Path) -> list[str]:
    """A message for each line that is too long."""
    return [
        f"{path}:{number}: {len(line)} characters, more than {LIMIT}"
        for path in sorted(folder.rglob("*"))
        if path.suffix in SUFFIXES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > LIMIT
    ]


def main() -> int:
    folders = [Path(argument) for argument in sys.argv[1:]] or FOLDERS
    found = [line for folder in folders for line in long_lines(folder)]
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
