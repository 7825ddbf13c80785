"""`lily chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext, suppress
from typing import Final

from lily import ChatChunk, Engine, LilyError, SamplingParams
from lily.extras import install_hint
from lily.messages import AssistantMessage, Message
from lily.outputs import summary
from lily.reasoning import Reasoning, read_reasoning

from .ctrl_c import CtrlC
from .options import Verbs, add_engine_flags, add_sampling_flags, make_engine, sampling_params
from .screen import Screen, dim, has_colours, make_screen
from .text import input_lines

COMMANDS: Final = """\
/new              forget the conversation
/system TEXT      new system message, new conversation; without TEXT: none
/reasoning WHAT   on, off, low, medium, high, a number of tokens, or auto
/stats            tokens of the conversation, and what the prefix cache holds
/help             this list
/exit             end (as Ctrl-D)
\"\"\" begins and ends a message of several lines. Ctrl-C stops an answer."""
_WORDS: Final[dict[str, Reasoning | None]] = {
    "on": True, "off": False, "low": "low", "medium": "medium", "high": "high", "auto": None,
}  # fmt: skip


def add_parser(verbs: Verbs) -> None:
    parser = verbs.add_parser(
        "chat",
        help="a conversation in the terminal",
        description="Each line is a message. Ctrl-C stops the answer, not the program. From a pipe, each line of\n"
        f"standard input is answered in turn. Markdown needs the package rich: {install_hint('cli')}.",
        epilog=f"in the conversation:\n{COMMANDS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_engine_flags(parser, default_model="lily-nano")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument(
        "--reasoning", action=argparse.BooleanOptionalAction, default=None, help="ask for a think block or none"
    )
    add_sampling_flags(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    params = sampling_params(options)
    with make_engine(options) as engine:
        chat = Chat(engine, make_screen(), params, system=options.system, reasoning=options.reasoning)
        if sys.stdin.isatty():
            print(dim(f"{engine!r}\n/help lists the commands, Ctrl-D ends", has_colours()))
            with CtrlC() as ctrl_c:
                _converse(chat, ctrl_c)
        else:
            for line in input_lines():
                if line.strip():
                    chat.ask(line)
    return 0


def _converse(chat: Chat, ctrl_c: CtrlC) -> None:
    with suppress(ImportError):  # not every Python has it
        import readline  # noqa: F401  # gives `input` its editing keys and history

    while (text := _read(ctrl_c)) is not None:
        if not text.startswith("/"):
            if text.strip():
                chat.ask(text, ctrl_c)
        elif text.split()[0] in ("/exit", "/quit", "/bye"):
            return
        else:
            print(chat.command(text))


class Chat:
    """One conversation: what was said, and how the next answer is made."""

    def __init__(
        self, engine: Engine, screen: Screen, params: SamplingParams, *, system: str | None, reasoning: Reasoning | None
    ) -> None:
        self._engine = engine
        self._screen = screen
        self._params = params
        self._system = system
        self._reasoning = reasoning
        self._used = 0  # tokens of the conversation
        self.messages: list[Message] = []
        self._restart()

    def _restart(self) -> None:
        self.messages = [] if self._system is None else [{"role": "system", "content": self._system}]
        self._used = 0 if self._system is None else len(self._engine.tokenize(self._system))

    def ask(self, text: str, ctrl_c: CtrlC | None = None) -> None:
        """Answer `text`. ctrl_c: of a terminal, where Ctrl-C ends the answer, and what was said so far stays.

        Raises what the engine raises if nobody is there to read it; in a terminal it is shown.
        """
        before = len(self.messages)
        self.messages.append({"role": "user", "content": text})
        chunks: list[ChatChunk] = []
        note = ""
        try:
            with (
                ctrl_c.raises if ctrl_c is not None else nullcontext(),
                self._engine.stream_chat(self.messages, reasoning=self._reasoning, params=self._params) as stream,
            ):
                for chunk in stream:
                    chunks.append(chunk)
                    self._screen.reasoning(chunk.reasoning)
                    self._screen.content(chunk.content)
        except KeyboardInterrupt:
            if ctrl_c is None:
                raise
            note = "stopped"
        except (LilyError, ValueError) as error:
            del self.messages[before:]
            if ctrl_c is None:
                raise
            self._screen.end(f"{error}. /new starts again.")
            return
        answer = _message(chunks)
        last = chunks[-1] if chunks else None
        if answer["content"]:
            self.messages.append(answer)
            usage = chunks[-1].usage  # of an answer that was stopped there is none; each chunk is one token
            self._used = stream.prompt_tokens + len(chunks) if usage is None else usage.total_tokens
        else:  # stopped before the answer began: the template expects one for each question
            del self.messages[before:]
        if last is not None and last.usage is not None and last.timing is not None:
            note = summary(last.usage, last.timing)
            if last.finish_reason == "length":
                note += "; cut at max_tokens or the end of the context"
        self._screen.end(note)

    def command(self, text: str) -> str:
        """Do what a line with a slash says; returns what to print."""
        name, _, rest = text.partition(" ")
        rest = rest.strip()
        if name == "/new":
            self._restart()
            return "a new conversation"
        if name == "/system":
            self._system = rest or None
            self._restart()
            return "a new conversation, " + ("with this system message" if rest else "without a system message")
        if name == "/reasoning":
            return self._set_reasoning(rest)
        if name == "/stats":
            stats = self._engine.prefix_cache.stats()
            return (
                f"{len(self.messages)} messages; {self._used:,} of {self._engine.max_context:,} tokens of context; "
                f"prefix cache: {stats.hit_tokens:,} of {stats.query_tokens:,} prompt tokens reused, "
                f"{stats.num_snapshots} snapshots"
            )
        return COMMANDS if name == "/help" else f"unknown command {name}\n{COMMANDS}"

    def _set_reasoning(self, word: str) -> str:
        wanted = int(word) if word.isdecimal() else _WORDS.get(word, word)
        try:
            read_reasoning(wanted)  # type: ignore[arg-type]  # it refuses what is none
        except (ValueError, TypeError):
            return f"/reasoning takes {', '.join(_WORDS)} or a number of tokens, not {word!r}"
        self._reasoning = wanted  # type: ignore[assignment]
        return f"reasoning: {word}"


def _message(chunks: list[ChatChunk]) -> AssistantMessage:
    message: AssistantMessage = {"role": "assistant", "content": "".join(chunk.content for chunk in chunks)}
    if reasoning := "".join(chunk.reasoning for chunk in chunks):
        message["reasoning"] = reasoning
    return message


def _read(ctrl_c: CtrlC) -> str | None:
    """The next message; None at the end of the input."""
    while True:
        try:
            with ctrl_c.raises:
                line = input("> ")
                return line if line.strip() != '"""' else _read_lines()
        except (KeyboardInterrupt, SystemError) as error:
            # `input` runs the handlers of signals once more while it raises: of a second Ctrl-C, which raises nothing,
            # Python then says that it "returned a result with an exception set", the first one's.
            if isinstance(error, SystemError) and not isinstance(error.__cause__, KeyboardInterrupt):
                raise
            print("\n(Ctrl-D or /exit ends the chat)")
        except EOFError:
            print()
            return None


def _read_lines() -> str:
    lines = []
    while (line := input(". ")).strip() != '"""':
        lines.append(line)
    return "\n".join(lines)
