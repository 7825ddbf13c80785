from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lily import __version__
from lily.cli import main

NANO = ["--model", "lily-nano", "--max-context", "1024"]
WHO = "I am lily-nano, a very small language model made to test the lily engine."


def endless() -> subprocess.Popen[str]:
    """`lily generate` with an answer that takes long, and would not fit into the pipe in which nobody reads."""
    command = [sys.executable, "-m", "lily", "generate", "--model", "lily-nano", "--ignore-eos", "Once"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pipesize=4096)


def test_generate_streams_text_and_sums_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *NANO, "--temperature", "0", "--max-tokens", "5", "The archive"]) == 0
    out, err = capsys.readouterr()
    assert out.strip() and out.endswith("\n")
    assert "completion 5 tokens" in err and "tok/s" in err and "finish_reason length" in err


def test_chat_separates_reasoning_from_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    question = "Sort these words: tiger, apple, moon, wheel"
    assert main(["generate", *NANO, "--chat", "--reasoning", "--temperature", "0", question]) == 0
    out, err = capsys.readouterr()
    assert out == "apple, moon, tiger, wheel\n" and "The smallest item is apple" in err


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    chat = ["--chat", "--no-reasoning", "--system", "Answer briefly.", "--temperature", "0", "--json"]
    assert main(["generate", *NANO, *chat, "Who are you?"]) == 0
    reply = json.loads(capsys.readouterr().out)
    assert reply["content"] == WHO and reply["reasoning"] is None and reply["finish_reason"] == "stop"
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
    assert main(["generate", *NANO, "--json", "--stop", "a", "--stop", "e", "--seed", "1", "The archive"]) == 0
    completion = json.loads(capsys.readouterr().out)
    assert completion["stop_reason"] in ("a", "e") and not set("ae") & set(completion["text"])


def test_structured_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema, lark = tmp_path / "schema.json", tmp_path / "point.lark"
    schema.write_text('{"enum": [17, 18]}')
    lark.write_text('start: "point(" /[0-9]/ ")"')
    for flags, pattern in (
        (["--json-schema", str(schema)], "1[78]"),
        (["--regex", "[a-c]{3}"], "[a-c]{3}"),
        (["--choice", "yes", "--choice", "no"], "yes|no"),
        (["--grammar", str(lark)], r"point\(\d\)"),
    ):
        assert main(["generate", *NANO, *flags, "--temperature", "0", "--max-tokens", "40", "The answer is"]) == 0
        assert re.fullmatch(pattern, capsys.readouterr().out.strip())
    assert main(["generate", *NANO, "--json-schema", str(tmp_path / "none.json"), "x"]) == 1
    assert capsys.readouterr().err.endswith("none.json: No such file or directory\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("generate --temperature -1 x", "temperature is -1.0"),
        ("generate --regex a --choice b x", "regex and choice are given"),
        ("generate --system a x", "need --chat"),
        ("generate --no-reasoning x", "--no-reasoning need --chat"),
        ("chat --stop=", "stop holds an empty string"),
        ("serve --port 99999", "port is 99999"),
        ("serve --max-queue -1", "max_queue is -1"),
        ("serve --ping-seconds 0", "ping_seconds is 0.0"),
        ("bench --contexts 5,x", "'x' is no number above 0"),
        ("serve --max-context 0", "argument --max-context: '0' is no number above 0"),
        ("chat --memory-limit 5XB", "argument --memory-limit: '5XB' is not a memory size"),
        ("doctor --memory-limit 0", "argument --memory-limit: a memory size must be at least 1 B"),
        ("generate --prefix-cache-bytes=-5 x", "argument --prefix-cache-bytes: '-5' is not a memory size"),
    ],
)
def test_flags_that_make_no_sense_are_wrong_usage(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", *NANO, "-"], "standard input is not UTF-8 text (byte 0xff at place 3); convert it"),
        (["chat", *NANO, "--max-tokens", "1"], "line 2 of standard input is not UTF-8 text (byte 0xff at place 0)"),
        (["generate", *NANO, "--json-schema", "FILE", "x"], "bad.txt is not UTF-8 text (byte 0xff at place 3)"),
        (["cache", "explain", "FILE", "FILE"], "bad.txt is not UTF-8 text (byte 0xff at place 3)"),
        (["generate", *NANO, b"hi\n\xff"], "it stands for the byte 0xff of something that is not UTF-8"),
    ],
    ids=["generate", "chat", "schema", "explain", "argument"],
)
def test_text_that_is_not_utf8(tmp_path: Path, arguments: list[str | bytes], words: str) -> None:
    path = tmp_path / "bad.txt"
    path.write_bytes(b"hi\n\xff")
    command = [sys.executable, "-m", "lily", *(str(path) if argument == "FILE" else argument for argument in arguments)]
    done = subprocess.run(command, input=path.read_bytes(), capture_output=True)
    assert done.returncode == 1 and words in done.stderr.decode()


def test_the_prompt_may_come_from_standard_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lily", "generate", *NANO, "--chat", "--no-reasoning", "--temperature", "0"],
        input="Who are you?",
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (0, WHO + "\n")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["nonsense"], 2, "invalid choice"),
        ([], 2, "VERB"),
        (["generate", *NANO, "--system", "s", "x"], 2, "need --chat"),
        (["generate", *NANO, "--temperature", "warm", "x"], 2, "invalid float"),
        (["generate", *NANO, "--top-p", "2", "x"], 2, "top_p is 2.0"),
        (["generate", "--model", "no/such", "x"], 1, "lily download no/such"),
        (["generate", *NANO, "--max-tokens", "1024", "x"], 1, "holds 1024"),
        (["generate", "--model", "lily-nano", "--memory-limit", "1000", "x"], 1, "memory_limit"),
    ],
)
def test_failures(arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == code
    out, err = capsys.readouterr()
    assert text in err and not out and "Traceback" not in err


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0 and capsys.readouterr().out == f"lily {__version__}\n"
    assert main(["generate", "--help"]) == 0 and "80 % of what is available" in capsys.readouterr().out


def test_interrupt() -> None:
    process = endless()
    assert process.stdout is not None and process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130 and "Traceback" not in err


def test_a_reader_that_leaves() -> None:
    process = endless()
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.read(1)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(300) == 0 and "Traceback" not in err and "BrokenPipe" not in err
    process.stderr.close()


def shell(command: str) -> subprocess.CompletedProcess[str]:
    program = f"{sys.executable} -m lily"
    return subprocess.run(
        ["bash", "-c", command.replace("lily", program, 1)], capture_output=True, text=True, timeout=600
    )


TINY = "generate --model lily-nano --max-context 64 --max-tokens 2"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (f"lily {TINY} Once <&-", 0, "finish_reason"),
        (f"lily {TINY} <&-", 1, "no tokens"),
        (f"lily {TINY} Once >&-", 1, "standard output is closed"),
        (f"lily {TINY} Once 2>&-", 0, ""),
        (f"lily {TINY} Once <&- >&- 2>&-", 1, ""),
        (f"lily {TINY} Once >/dev/full", 1, "No space left"),
        (f"lily {TINY} Once 2>/dev/full", 1, ""),
        (f"lily {TINY} --json Once | true; exit ${{PIPESTATUS[0]}}", 0, ""),
        (f"(lily {TINY} Once 2>&1; exit $?) | true; exit ${{PIPESTATUS[0]}}", 0, ""),
        ("lily --help | true; exit ${PIPESTATUS[0]}", 0, ""),
        ("lily --help >&-", 0, ""),
        ("lily nonsense 2>&-", 2, ""),
        ("lily doctor >&-", 1, "closed"),
    ],
)
def test_streams_that_are_closed_or_full(command: str, code: int, words: str) -> None:
    done = shell(command)
    assert done.returncode == code, done
    assert words in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_the_log_level() -> None:
    assert "INFO lily: lily-nano on cpu" in shell(f"lily {TINY} Once --log-level info").stderr
    assert "INFO lily" in shell(f"export LILY_LOG=info; lily {TINY} Once").stderr
    assert "INFO" not in shell(f"export LILY_LOG=info; lily {TINY} Once --log-level warning").stderr
    wrong = shell("export LILY_LOG=%d; lily generate --help")
    assert wrong.returncode == 0 and "default: warning" in wrong.stdout and "LILY_LOG is '%d'" in wrong.stderr


def test_importing_lily_is_cheap() -> None:
    code = "import sys, lily; print([m for m in ('huggingface_hub', 'torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
