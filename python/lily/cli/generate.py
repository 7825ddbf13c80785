"""`lily generate`: complete a prompt, or answer it with --chat."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict

from lily import ChatChunk, ChatReply, Chunk, Completion, Engine, SamplingParams
from lily.messages import Message
from lily.outputs import summary

from .options import UsageError, Verbs, add_engine_flags, add_sampling_flags, make_engine, sampling_params
from .screen import PlainScreen
from .text import file_text


def add_parser(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "generate",
        help="complete a prompt, or answer it with --chat",
        description="Streams the text to stdout and a summary of the timing to stderr.",
    )
    parser.add_argument("prompt", nargs="?", default="-", help="text; - or nothing reads standard input")
    add_engine_flags(parser, default_model="lily-nano")
    parser.add_argument("--chat", action="store_true", help="apply the chat template instead of completing the text")
    parser.add_argument("--system", metavar="TEXT", help="system message; needs --chat")
    parser.add_argument(
        "--reasoning",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="ask for a think block or none; needs --chat; its text goes to stderr",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    add_sampling_flags(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if not options.chat and (options.system is not None or options.reasoning is not None):
        raise UsageError("--system, --reasoning and --no-reasoning need --chat")
    params = sampling_params(options)
    prompt = file_text("-") if options.prompt == "-" else options.prompt
    with make_engine(options) as engine:
        if options.json:
            print(json.dumps(_result(engine, options, prompt, params), ensure_ascii=False))
            return 0
        screen = PlainScreen(sys.stderr, colours=False)
        last: Chunk | ChatChunk | None = None
        for last in _chunks(engine, options, prompt, params):
            if isinstance(last, Chunk):
                screen.content(last.text)
            else:
                screen.reasoning(last.reasoning)
                screen.content(last.content)
        screen.end()
        if last is not None and last.usage is not None and last.timing is not None:
            print(f"\n{summary(last.usage, last.timing)}, finish_reason {last.finish_reason}", file=sys.stderr)
    return 0


def _messages(options: argparse.Namespace, prompt: str) -> list[Message]:
    messages: list[Message] = [{"role": "user", "content": prompt}]
    if options.system is not None:
        messages.insert(0, {"role": "system", "content": options.system})
    return messages


def _chunks(
    engine: Engine, options: argparse.Namespace, prompt: str, params: SamplingParams
) -> Iterator[Chunk] | Iterator[ChatChunk]:
    if options.chat:
        return engine.stream_chat(_messages(options, prompt), reasoning=options.reasoning, params=params)
    return engine.stream(prompt, params)


def _result(engine: Engine, options: argparse.Namespace, prompt: str, params: SamplingParams) -> dict[str, object]:
    result: Completion | ChatReply
    if options.chat:
        result = engine.chat(_messages(options, prompt), reasoning=options.reasoning, params=params)
    else:
        result = engine.generate(prompt, params)
    # The options offer no logprobs.
    out: dict[str, object] = {name: value for name, value in asdict(result).items() if name != "logprobs"}
    return out
