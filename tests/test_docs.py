"""The examples of the task pages run as they stand, block after block, and print what the page shows."""

import contextlib
import io
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.stem)
def test_examples_print_what_the_page_shows(page: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    for code, shown in blocks:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, page.name, "exec"), namespace)
        assert printed.getvalue() == shown
