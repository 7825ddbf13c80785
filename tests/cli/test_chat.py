from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from lily import Engine, SamplingParams
from lily.cli.chat import Chat, _read
from lily.cli.ctrl_c import CtrlC
from lily.cli.screen import MarkdownScreen, PlainScreen, block_end
from tests.cli.test_cli import NANO, WHO

GREEDY = [*NANO, "--no-reasoning", "--temperature", "0"]


class Terminal:
    """`lily chat` in a pseudo-terminal."""

    def __init__(self, *arguments: str, term: str = "dumb") -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lily", "chat", *arguments],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True, env=os.environ | {"TERM": term},
        )  # fmt: skip
        os.close(slave)
        self.shown = ""

    def send(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str, seconds: float = 300) -> None:
        """Read until `text` has appeared behind what was waited for before."""
        assert self._appears(text, seconds), f"{text!r} did not appear in time in {self.shown!r}"

    def interrupt_until(self, text: str) -> None:
        """Press Ctrl-C, and again if nothing happens: GNU readline misses one that comes while it starts to wait."""
        for _ in range(60):
            os.killpg(self.process.pid, signal.SIGINT)
            if self._appears(text, 2):
                return
        raise AssertionError(f"{text!r} did not appear in {self.shown!r}")

    def _appears(self, text: str, seconds: float) -> bool:
        end = time.monotonic() + seconds
        while text not in self.shown:
            readable, _, _ = select.select([self._master], [], [], max(0.0, end - time.monotonic()))
            if not readable:
                return False
            try:
                self.shown += os.read(self._master, 4096).decode(errors="replace")
            except OSError:
                raise AssertionError(f"{text!r} did not appear in {self.shown!r}") from None
        self.shown = self.shown.partition(text)[2]
        return True

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal(*GREEDY)
    yield terminal
    terminal.close()


def test_a_conversation(terminal: Terminal) -> None:
    terminal.wait_for("> ")
    terminal.send("Who are you?\n")
    terminal.wait_for(WHO)
    terminal.wait_for("tok/s")
    terminal.wait_for("> ")
    terminal.send("/stats\n")
    terminal.wait_for("2 messages; ")
    terminal.send("/system Answer briefly.\n")
    terminal.wait_for("with this system message")
    terminal.send("/stats\n")
    terminal.wait_for("1 messages; ")
    terminal.send("/reasoning lots\n")
    terminal.wait_for("/reasoning takes on, off, low, medium, high, auto or a number of tokens, not 'lots'")
    terminal.send("/nonsense\n")
    terminal.wait_for("unknown command /nonsense")
    terminal.send('"""\nWho are\nyou?\n"""\n')
    terminal.wait_for("first token")
    terminal.wait_for("> ")
    terminal.send("/exit\n")
    assert terminal.process.wait(300) == 0


def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
    terminal = Terminal("--model", "lily-nano", "--ignore-eos", "--no-reasoning", "--temperature", "0")  # 8192 tokens
    try:
        terminal.wait_for("> ")
        terminal.send("Who are you?\n")
        terminal.wait_for("I am")
        terminal.interrupt_until("stopped")
        terminal.wait_for("> ")
        terminal.send("/stats\n")
        terminal.wait_for("2 messages")  # what was said stays
        terminal.interrupt_until("Ctrl-D or /exit ends the chat")  # at the prompt, or a moment before
        terminal.wait_for("> ")
        terminal.send("\x04")
        assert terminal.process.wait(300) == 0
    finally:
        terminal.close()


def test_ctrl_c_pressed_wildly_does_not_end_the_program() -> None:
    terminal = Terminal(*GREEDY)
    try:
        terminal.wait_for("> ")
        for _ in range(20):
            terminal.send("Who are you?\n")
            for _ in range(10):
                os.killpg(terminal.process.pid, signal.SIGINT)
                time.sleep(0.01)
        assert terminal.process.poll() is None
        terminal.send("\n/help\n")
        terminal.wait_for("Ctrl-C stops an answer.")
        terminal.send("/exit\n")
        assert terminal.process.wait(300) == 0
    finally:
        terminal.close()


def test_ctrl_c_is_raised_only_where_somebody_waits() -> None:
    before = signal.getsignal(signal.SIGINT)
    with CtrlC() as ctrl_c:
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), ctrl_c.raises:
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        with ctrl_c.raises:
            pass
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_does_not_end_the_conversation() -> None:
    terminal = Terminal("--model", "lily-nano", "--max-context", "256", "--no-reasoning", "--temperature", "0")
    try:
        terminal.wait_for("> ")
        terminal.send("word " * 300 + "\n")
        terminal.wait_for("/new starts again")
        terminal.send("Who are you?\n")
        terminal.wait_for(WHO)
    finally:
        terminal.close()


def test_the_tokens_of_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    def used() -> int:
        return int(chat.command("/stats").partition("; ")[2].partition(" of ")[0].replace(",", ""))

    with Engine("lily-nano", max_context=512) as engine:
        screen = PlainScreen(sys.stderr, colours=False)
        chat = Chat(engine, screen, SamplingParams(temperature=0), system=None, reasoning=False)
        assert used() == 0
        chat.ask("Who are you?")
        whole = engine.chat([{"role": "user", "content": "Who are you?"}], temperature=0, reasoning=False)
        assert used() == whole.usage.total_tokens
        chat.command("/new")
        assert used() == 0
        chat.command("/system Answer briefly.")
        assert used() == len(engine.tokenize("Answer briefly."))
        chat.command("/system")
        shown = 0

        def stop_at_the_second(text: str) -> None:
            nonlocal shown
            shown += 1
            if shown == 2:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(screen, "content", stop_at_the_second)
        with CtrlC() as ctrl_c:
            chat.ask("Who are you?", ctrl_c)
        assert chat.messages[-1]["role"] == "assistant"
        assert used() == whole.usage.prompt_tokens + 2


def test_markdown_on_a_terminal() -> None:
    pytest.importorskip("rich")
    terminal = Terminal(*GREEDY, term="xterm")
    try:
        terminal.wait_for("> ")
        terminal.send("Who are you?\n")
        terminal.wait_for("lily engine.")
        terminal.wait_for("first token")
        terminal.wait_for("> ")
        terminal.send("\x04")
        assert terminal.process.wait(300) == 0
    finally:
        terminal.close()


def test_from_a_pipe_each_line_is_a_message() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lily", "chat", *GREEDY],
        input="Who are you?\n\nWho are you?\n", capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.count(WHO) == 2 and "\x1b" not in done.stdout
    assert done.stderr.count("first token") == 2 and "Traceback" not in done.stderr


def test_an_error_in_a_pipe_fails() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lily", "chat", "--model", "lily-nano", "--max-context", "64"],
        input="word " * 300, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1 and "the context holds 64" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("", None),
        ("one line", None),
        ("one\n\ntwo", 5),
        ("\n\none\n\n", 7),
        ("one\n\n", 5),
        ("one\n", None),
        ("```\na\n\nb\n", None),
        ("```py\na\n\nb\n```\n\nrest", 16),
        ("~~~\n```\n\n~~~\n\n", 14),
        ("one\u2028line\n\ntwo", 10),
    ],
)
def test_where_a_block_ends(text: str, end: int | None) -> None:
    assert block_end(text) == end


def test_plain_text_keeps_thoughts_apart(capsys: pytest.CaptureFixture[str]) -> None:
    screen = PlainScreen(sys.stderr, colours=False)
    for thought, text in (("a", ""), ("b", ""), ("", "c"), ("", "d")):
        screen.reasoning(thought)
        screen.content(text)
    screen.end("note")
    assert capsys.readouterr() == ("cd\n", "thinking: ab\nnote\n")


def test_markdown_shows_each_block_once(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("rich")
    screen = MarkdownScreen()
    for piece in ("# Ti", "tle\n", "\nSome *em", "phasis*.\n\n```\nco", "de\n\nmore\n```\n", "\nend"):
        screen.content(piece)
    screen.end()
    shown = capsys.readouterr().out
    assert [shown.count(word) for word in ("Title", "emphasis", "code", "more", "end")] == [1, 1, 1, 1, 1]


def test_a_second_ctrl_c_at_the_moment_of_the_first_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = SystemError()
    twice = SystemError()
    twice.__cause__ = KeyboardInterrupt()  # what Python makes of a handler that returns while that is set
    answers: list[str | SystemError] = [twice, other, "hello"]

    def read(prompt: str) -> str:
        answer = answers.pop(0)
        if isinstance(answer, str):
            return answer
        raise answer

    monkeypatch.setattr("builtins.input", read)
    with CtrlC() as ctrl_c:
        with pytest.raises(SystemError):  # the other one
            _read(ctrl_c)
        assert "/exit ends the chat" in capsys.readouterr().out
        assert _read(ctrl_c) == "hello"
