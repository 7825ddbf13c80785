"""Print the quick start of the README: its only Python block. CI and the tests run it."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def quick_start(text: str) -> str:
    """The Python block of a README that has exactly one."""
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if len(blocks) != 1:
        raise ValueError(f"the README must have one Python block, it has {len(blocks)}")
    return str(blocks[0])


if __name__ == "__main__":
    print(quick_start(README.read_text()), end="")
