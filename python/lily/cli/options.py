"""Flags that several verbs share. Each repeats the name of the Python parameter."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias, get_args

from lily import Engine, SamplingParams
from lily.engine_options import DeviceName, DtypeName
from lily.extras import install_hint
from lily.files import home_path
from lily.log import LEVELS, VARIABLE
from lily.memory import parse_bytes
from lily.progress import ProgressOption

from .text import file_text

# What a verb adds its parser to; argparse has no public name for it.
Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class UsageError(Exception):
    """Flags whose values make no sense, whatever the model is: exit status 2."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """What the API says about the values of flags is wrong usage."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise UsageError(str(error)) from None


_SAMPLING_FLAGS: dict[str, type] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "repetition_penalty": float,
    "seed": int,
    "max_tokens": int,
    "min_tokens": int,
    "thinking_token_budget": int,
}
_SAMPLING_HELP = {"max_tokens": "default: the rest of the context"}


def add_engine_flags(parser: argparse.ArgumentParser, *, default_model: str | None, log_level: str = "warning") -> None:
    parser.add_argument(
        "--model", default=default_model, help=f"folder or Hugging Face id; default: {default_model or 'none'}"
    )
    parser.add_argument("--revision", help="branch, tag or commit of a Hugging Face id")
    parser.add_argument("--device", default="auto", choices=get_args(DeviceName))
    parser.add_argument("--dtype", default="auto", choices=get_args(DtypeName))
    parser.add_argument(
        "--max-context", type=positive, metavar="TOKENS", help="prompt and completion; default: what fits"
    )
    parser.add_argument(
        "--memory-limit", type=_size, metavar="SIZE", help="such as 24GiB; default: 80 %% of what is available"
    )
    parser.add_argument(
        "--prefix-cache-bytes",
        type=lambda text: _size(text, least=0),
        metavar="SIZE",
        help="for kept beginnings of prompts; 0 keeps nothing",
    )
    parser.add_argument("--cache-dir", metavar="FOLDER", help="keeps beginnings of prompts for the next start too")
    parser.add_argument("--chat-template", metavar="FILE", help="Jinja file instead of the checkpoint's template")
    add_log_flag(parser, default=log_level)


def make_engine(options: argparse.Namespace, *, progress: ProgressOption = None) -> Engine:
    return Engine(
        options.model,
        revision=options.revision,
        device=options.device,
        dtype=options.dtype,
        max_context=options.max_context,
        memory_limit=options.memory_limit,
        prefix_cache_bytes=options.prefix_cache_bytes,
        cache_dir=options.cache_dir,
        chat_template=options.chat_template,
        progress=progress,
    )


def positive(text: str) -> int:
    """A flag's whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _size(text: str, *, least: int = 1) -> int:
    """A flag's memory size, in bytes. A plain number is bytes, as in Python."""
    try:
        return parse_bytes(int(text) if text.isdecimal() else text, least=least)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_log_flag(parser: argparse.ArgumentParser, *, default: str = "warning") -> None:
    """--log-level; without it LILY_LOG, else `default`."""
    level = os.environ.get(VARIABLE)
    parser.add_argument(
        "--log-level",
        default=level if level in LEVELS else default,
        choices=LEVELS,
        help="of messages on stderr; default: %(default)s",
    )


def folder_path(text: str) -> Path:
    """The type of a flag. Path("") would be the current folder, which nobody asked for."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give a folder ('.' is the current one)")
    try:
        return home_path("the folder", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling", "defaults come from the checkpoint; --temperature 0 is greedy")
    for name, kind in _SAMPLING_FLAGS.items():
        group.add_argument(
            f"--{name.replace('_', '-')}", type=kind, metavar="N" if kind is int else "X", help=_SAMPLING_HELP.get(name)
        )
    group.add_argument("--stop", action="append", metavar="TEXT", help="ends the text; may be given several times")
    group.add_argument("--ignore-eos", action="store_true", help="the checkpoint's stop ids do not end the text")
    group = parser.add_argument_group(
        "structured output", f"at most one of these; needs llguidance: {install_hint('grammar')}"
    )
    group.add_argument("--json-schema", metavar="FILE", help="a JSON schema; the text is JSON that follows it")
    group.add_argument("--regex", metavar="REGEX", help="a regular expression that the whole text matches")
    group.add_argument("--choice", action="append", metavar="TEXT", help="one of the texts; given several times")
    group.add_argument("--grammar", metavar="FILE", help="a grammar in Lark's notation")


def sampling_params(options: argparse.Namespace) -> SamplingParams:
    given = {name: getattr(options, name) for name in _SAMPLING_FLAGS if getattr(options, name) is not None}
    for name in ("json_schema", "grammar"):
        if (file := getattr(options, name)) is not None:
            given[name] = file_text(file)
    with usage_errors():
        return SamplingParams(
            stop=options.stop or (), ignore_eos=options.ignore_eos, regex=options.regex, choice=options.choice, **given
        )
