"""Lines that a client of Anthropic's API puts in front of a system prompt for the service, not for the model."""

from __future__ import annotations

import re
from typing import Final

# The line changes with every request. At the start of the prompt it would keep everything behind it from being reused.
_LINES: Final = re.compile(r"(?:x-anthropic-billing-header:[^\n]*(?:\n|\Z))+\n?")


def without_billing_lines(system: str) -> str:
    """The system prompt without such lines at its start, and without an empty line that set them apart."""
    match = _LINES.match(system)
    return system if match is None else system[match.end() :]
