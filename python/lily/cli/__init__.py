"""The command `lily`: verbs over the same names as the Python API."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress

from lily import LilyError, __version__
from lily.log import show_log

from . import bench, cache, chat, doctor, download, generate, serve
from .options import UsageError

VERBS = (chat, generate, serve, bench, download, doctor, cache)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    has_output = _fill_closed_streams()
    try:
        code = _run(arguments, has_output)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _complain("")
        return 130
    except BrokenPipeError:
        return 0  # the reader has enough, as in `lily generate .. | head`
    except UsageError as error:
        _complain(f"lily: {error}")
        return 2
    except (LilyError, ValueError, TypeError, OSError, ImportError) as error:
        _complain(f"lily: {_text(error)}")
        return 1
    finally:
        _drop_broken_output()


def _run(arguments: Sequence[str] | None, has_output: bool) -> int:
    parser = argparse.ArgumentParser(
        prog="lily",
        description="Run Qwen3.6-35B-A3B and its family.",
        epilog="exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"lily {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in VERBS:
        verb.add_parser(verbs)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:  # argparse has printed the help or the error
        return stop.code if isinstance(stop.code, int) else 2
    if not has_output and options.verb != "serve":
        raise OSError("standard output is closed, so the result has nowhere to go")
    show_log(options.log_level)
    options.command = shlex.join(["lily", *(sys.argv[1:] if arguments is None else arguments)])
    code: int = options.run(options)
    return code


def _fill_closed_streams() -> bool:
    """Closed standard streams become /dev/null, so no other file gets their numbers. False if stdout was closed."""
    has_output = sys.stdout is not None
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
    return has_output


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"  # as other commands say it
    return str(error)


def _complain(text: str) -> None:
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def _drop_broken_output() -> None:
    """What could not be written must not be tried again at exit, where Python would print a traceback."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
