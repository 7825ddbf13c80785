"""How to install the optional packages."""

from __future__ import annotations

from typing import Literal


def install_hint(extra: Literal["cli", "grammar", "server"]) -> str:
    """The command that installs an extra. From lily's own folder: `lily` of PyPI is another project."""
    return f"""pip install ".[{extra}]" in lily's folder"""
