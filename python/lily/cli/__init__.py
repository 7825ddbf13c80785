"""The command `lily`: verbs over the same names as the Python API."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from lily import LilyError, __version__

from . import doctor, generate


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="lily", description="Run Qwen3.6-35B-A3B and its family.")
    parser.add_argument("--version", action="version", version=f"lily {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in (generate, doctor):
        verb.add_parser(verbs)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse has printed the help or the error
        return stop.code if isinstance(stop.code, int) else 2
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader has enough, as in `lily generate .. | head`. Nothing more may be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (LilyError, ValueError, TypeError, OSError) as error:
        print(f"lily: {error}", file=sys.stderr)
        return 1
