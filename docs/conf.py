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
autodoc_typehints = "none"  # the signature has them
autodoc_preserve_defaults = True
add_module_names = False
# A release builds a reader's page, not a search through every private name.
autodoc_default_options = {"undoc-members": False}


def markdown_code(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Docstrings quote code as Markdown does: `like this`."""
    lines[:] = [re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line) for line in lines]


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", markdown_code)
