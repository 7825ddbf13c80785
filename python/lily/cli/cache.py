"""`lily cache`: the prefix cache on disk, and where prompts part from each other."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from lily.cache_folder import CachedPrompt, cached_prompts, clear_folder
from lily.chat_template import load_chat_template
from lily.config import load_config
from lily.fingerprint import tokenizer_fingerprint
from lily.hub import find_model
from lily.memory import format_bytes
from lily.messages import Message
from lily.tokenizer import Tokenizer
from lily.tools import as_tools

from .options import Verbs, add_log_flag, folder_path
from .text import file_text

_SHOWN_TOKENS: Final = 12


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt that can be compared: where it comes from, and its token ids."""

    name: str
    token_ids: list[int]


def add_parser(verbs: Verbs) -> None:
    parser = verbs.add_parser("cache", help="the prefix cache on disk, and where prompts part")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    stats = actions.add_parser("stats", help="what a cache folder holds")
    clear = actions.add_parser("clear", help="remove the cached prompts of a folder")
    explain = actions.add_parser(
        "explain",
        help="show where prompts diverge",
        description="Compares each prompt with the one before it and, with --cache-dir, with those on disk: behind the "
        "place where they part nothing can be reused. A FILE holds text, or JSON: a list of messages, or a request "
        "with messages and tools as a server gets it; a .jsonl file holds one of these on each line.",
    )
    for action in (stats, clear):
        action.add_argument(
            "--cache-dir", type=folder_path, required=True, metavar="FOLDER", help="as given to Engine or --cache-dir"
        )
    explain.add_argument("files", nargs="+", type=Path, metavar="FILE")
    explain.add_argument(
        "--model", default="lily-nano", help="whose tokenizer and template are used; default: %(default)s"
    )
    explain.add_argument("--revision", help="branch, tag or commit of a Hugging Face id")
    explain.add_argument("--chat-template", metavar="FILE", help="Jinja file instead of the checkpoint's template")
    explain.add_argument("--cache-dir", type=folder_path, metavar="FOLDER", help="compare with the prompts there too")
    for action, run in ((stats, _stats), (clear, _clear), (explain, _explain)):
        action.add_argument("--json", action="store_true", help="print one JSON object")
        add_log_flag(action)
        action.set_defaults(run=run)


def _stats(options: argparse.Namespace) -> int:
    by_model: dict[str, list[CachedPrompt]] = {}
    for prompt in cached_prompts(options.cache_dir):
        by_model.setdefault(prompt.path.parent.name, []).append(prompt)
    models = [
        {
            "folder": folder,
            "num_prompts": len(prompts),
            "num_bytes": sum(prompt.num_bytes for prompt in prompts),
            "longest_tokens": max(prompt.num_tokens for prompt in prompts),
            "last_used": datetime.fromtimestamp(max(prompt.last_used for prompt in prompts)).isoformat(" ", "seconds"),
        }
        for folder, prompts in by_model.items()
    ]
    if options.json:
        print(json.dumps({"models": models}))
        return 0
    if not models:
        print("the cache is empty")
    for model in models:
        print(
            f"{model['folder']}: {model['num_prompts']} prompts of up to {model['longest_tokens']:,} tokens, "
            f"{format_bytes(cast(int, model['num_bytes']))}, last used {model['last_used']}"
        )
    return 0


def _clear(options: argparse.Namespace) -> int:
    num_files, num_bytes = clear_folder(options.cache_dir)
    if options.json:
        print(json.dumps({"removed_files": num_files, "removed_bytes": num_bytes}))
    else:
        print(f"removed {num_files} files, {format_bytes(num_bytes)}")
    return 0


def _explain(options: argparse.Namespace) -> int:
    reader = PromptReader(options.model, options.revision, options.chat_template)
    prompts = [prompt for path in options.files for prompt in reader.read(path)]
    cached = [] if options.cache_dir is None else reader.cached(options.cache_dir)
    if len(prompts) < 2 and options.cache_dir is None:
        print(
            "lily cache explain: one prompt has nothing to be compared with; give a second FILE or --cache-dir",
            file=sys.stderr,
        )
        return 2
    reports = []
    for index, prompt in enumerate(prompts):
        others = prompts[max(index - 1, 0) : index]
        nearest = max([*others, *cached], key=lambda other: _common(prompt, other), default=None)
        if nearest is not None:
            reports.append(reader.compare(prompt, nearest))
        elif cached or options.cache_dir is not None:
            print(f"{prompt.name}: the cache folder holds no prompt of this model", file=sys.stderr)
    if options.json:
        print(json.dumps({"comparisons": [asdict(report) for report in reports]}, ensure_ascii=False))
    else:
        print("\n\n".join(map(str, reports)))
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Where a prompt parts from another. The texts are those around that place, from the token on that differs."""

    prompt: str
    other: str
    prompt_tokens: int
    other_tokens: int
    common_tokens: int
    text_before: str
    text: str
    other_text: str
    message: int | None  # number of the rendered message that holds the place, from 0; None without a chat template

    def __str__(self) -> str:
        head = f"{self.prompt} ({self.prompt_tokens:,} tokens) and {self.other} ({self.other_tokens:,} tokens)"
        if self.common_tokens == self.prompt_tokens == self.other_tokens:
            return f"{head} are the same: all but the last token can be reused"
        if self.common_tokens == self.other_tokens:
            return f"{head}: the first goes on where the second ends; all {self.common_tokens:,} tokens can be reused"
        where = "" if self.message is None else f", in message {self.message}"
        rest = self.prompt_tokens - self.common_tokens
        reuse = f"at most {self.common_tokens:,} tokens can be reused, {rest:,} are computed"
        first = f"{head} part at token {self.common_tokens:,}{where}: {reuse}"
        return f"{first}\n  both:   …{self.text_before!r}\n  first:  {self.text!r}\n  second: {self.other_text!r}"


class PromptReader:
    """Prompts as the engine would see them: the checkpoint's tokenizer and chat template, without its weights."""

    def __init__(self, model: str, revision: str | None, chat_template: str | None) -> None:
        self._folder = find_model(model, revision)
        self._tokenizer = Tokenizer(self._folder, load_config(self._folder).vocab_size)
        self._template = load_chat_template(self._folder, self._tokenizer, chat_template)

    def read(self, path: Path) -> list[Prompt]:
        """The prompts of a file. Raises ValueError, naming file and line, for JSON that is no prompt."""
        text = file_text(path)
        if path.suffix == ".jsonl":
            # Not splitlines(): texts in JSON may hold other ends of lines, such as U+2028.
            lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
            return [self._prompt(f"{path}:{n}", self._json(f"{path}:{n}", line)) for n, line in lines]
        if path.suffix == ".json":
            return [self._prompt(str(path), self._json(str(path), text))]
        return [self._prompt(str(path), text)]

    def cached(self, cache_dir: Path) -> list[Prompt]:
        """The prompts on disk that were made with this tokenizer."""
        wanted = tokenizer_fingerprint(self._folder)
        found = []
        for cached in cached_prompts(cache_dir):
            try:
                fingerprints, token_ids = cached.read_tokens()
            except (ValueError, OSError) as error:
                print(f"lily cache explain: {error}", file=sys.stderr)
                continue
            if fingerprints.get("tokenizer") == wanted:
                found.append(Prompt(f"{cached.path.parent.name}/{cached.path.name[:16]}…", token_ids.tolist()))
        return found

    def compare(self, prompt: Prompt, other: Prompt) -> Comparison:
        common = _common(prompt, other)
        border = self._tokenizer.added_tokens.get("<|im_start|>")
        starts = prompt.token_ids[: common + 1].count(border) if border is not None else 0

        def text(token_ids: Sequence[int]) -> str:
            return self._tokenizer.decode(token_ids)

        return Comparison(
            prompt=prompt.name,
            other=other.name,
            prompt_tokens=len(prompt.token_ids),
            other_tokens=len(other.token_ids),
            common_tokens=common,
            text_before=text(prompt.token_ids[max(common - _SHOWN_TOKENS, 0) : common]),
            text=text(prompt.token_ids[common : common + _SHOWN_TOKENS]),
            other_text=text(other.token_ids[common : common + _SHOWN_TOKENS]),
            message=starts - 1 if starts else None,
        )

    def _json(self, name: str, text: str) -> object:
        try:
            return json.loads(text)
        except ValueError as error:
            raise ValueError(f"{name}: it is not JSON: {error}") from None

    def _prompt(self, name: str, value: object) -> Prompt:
        if isinstance(value, str):
            return Prompt(name, self._tokenizer.encode(value))
        tools = None
        if isinstance(value, Mapping):
            request: Mapping[str, Any] = value
            if isinstance(request.get("prompt"), str):
                return Prompt(name, self._tokenizer.encode(request["prompt"]))
            value, tools = request.get("messages"), request.get("tools")
        if not isinstance(value, list):
            raise ValueError(
                f"{name}: it is neither text, nor a list of messages, nor an object with 'messages' or 'prompt'"
            )
        if self._template is None:
            raise ValueError(f"{name}: it holds messages, but the model has no chat template; give --chat-template")
        rendered = self._template.render(cast(list[Message], value), tools=as_tools(tools))
        return Prompt(name, rendered.token_ids(self._tokenizer))


def _common(one: Prompt, other: Prompt) -> int:
    """How many token ids both begin with."""
    length = min(len(one.token_ids), len(other.token_ids))
    differ = np.flatnonzero(np.asarray(one.token_ids[:length]) != np.asarray(other.token_ids[:length]))
    return int(differ[0]) if len(differ) else length
