"""Messages of the logger "lily" on stderr, for programs that configure no logging of their own."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import Final, Literal, get_args

LogLevel = Literal["debug", "info", "warning", "error"]
LEVELS: Final[tuple[str, ...]] = get_args(LogLevel)
VARIABLE: Final = "LILY_LOG"

_log: Final = logging.getLogger("lily")


class _StderrHandler(logging.Handler):
    """Writes to what sys.stderr is now. Silent where the program has handlers of its own: they get the messages."""

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr is not None and not logging.getLogger().handlers:
            with suppress(OSError, ValueError):
                print(self.format(record), file=sys.stderr)


_handler: Final = _StderrHandler()
_handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s lily: %(message)s", datefmt="%H:%M:%S"))


def show_log(level: str) -> None:
    """Write messages of `level` and above to stderr. Raises ValueError for an unknown level."""
    if level not in LEVELS:
        raise ValueError(f"the log level is {level!r}; it must be one of {', '.join(LEVELS)}")
    _log.setLevel(level.upper())
    if _handler not in _log.handlers:
        _log.addHandler(_handler)


def show_log_from_environment() -> None:
    """As LILY_LOG says; nothing if it is not set."""
    level = os.environ.get(VARIABLE)
    if not level:
        return
    if level in LEVELS:
        show_log(level)
    else:
        _log.warning("%s is %r; it must be one of %s", VARIABLE, level, ", ".join(LEVELS))
