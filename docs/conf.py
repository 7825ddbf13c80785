"""Sphinx: furo, MyST, the API from docstrings, charts of the records. `make docs` builds it with warnings as errors."""

import re
import sys
from importlib import metadata
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "lily"
author = "the lily maintainers"
copyright = author
version = release = metadata.version("lily")

extensions = ["myst_parser", "sphinx.ext.autodoc", "bench_records"]
exclude_patterns = ["_build"]
source_suffix = {".md": "markdown"}

html_theme = "furo"
html_title = f"lily {release}"
html_copy_source = False

myst_enable_extensions = ["fieldlist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {
    name: name for name in ("Prompt", "ToolLike", "ToolChoice", "ResponseFormat", "Reasoning", "Message")
}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
autodoc_preserve_defaults = True
add_module_names = False


def readable(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstrings quote code as Markdown does, `like this`, and explain a parameter or field at the start of a line."""
    shown = []
    for line in lines:
        line = re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line)
        if what != "module" and (match := re.match(r"([a-z][a-z_]+(?:, [a-z][a-z_]+)*): (?!:)", line)):
            shown.append("")
            line = f"``{match[1]}``: {line[match.end() :]}"
        elif line.startswith("Raises "):
            shown.append("")
        shown.append(line)
    lines[:] = shown


def plain_aliases(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Aliases by their names alone."""
    shown = [text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", text) for text in (signature, returns)]
    return shown[0], shown[1]


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", readable)
    app.connect("autodoc-process-signature", plain_aliases)
