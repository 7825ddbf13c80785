"""Engines that are interrupted, broken or thrown away: results or named errors, and everything is given back."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lily import Engine, EngineClosedError, LilyError

OPTIONS = {"max_context": 1024, "memory_limit": "1GiB", "progress": False}
MIB = 1 << 20
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this machine has no /proc")


def open_engine(model: str | Path = "lily-nano", **options: object) -> Engine:
    return Engine(model, **(OPTIONS | options))  # type: ignore[arg-type]


def anonymous_bytes() -> int:
    match = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match
    return int(match[1]) * 1024


def held() -> tuple[int, int, int]:
    """Threads of Python, threads of the process, open files."""
    return threading.active_count(), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def open_files() -> list[str]:
    return [str(path.resolve()) for path in Path("/proc/self/fd").iterdir()]


def settles(expected: tuple[int, int, int]) -> bool:
    """Whether `held` comes back to what it was: threads end a moment after they are told to, earlier ones too."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        gc.collect()
        if all(now <= before for now, before in zip(held(), expected, strict=True)):
            return True
        time.sleep(0.01)
    return False


def rounds_keep_their_level(work: Callable[[], object], rounds: int, slack_bytes: int) -> None:
    """Memory after many rounds is that after a few. What threads add that meet as never before, they add once."""
    for _ in range(4):
        work()
    gc.collect()
    expected, grown = held(), list[int]()
    while len(grown) < 3 and not (grown and grown[-1] < slack_bytes):
        before = anonymous_bytes()
        for _ in range(rounds):
            work()
        assert settles(expected), f"threads and files: {expected} became {held()}"
        grown.append(anonymous_bytes() - before)
    assert min(grown) < slack_bytes, f"{[round(each / MIB, 1) for each in grown]} MiB more after {rounds} rounds each"


class Alarm:
    """Ctrl-C at a moment of our choice; an interrupt that comes too late is none."""

    def __init__(self) -> None:
        self.armed = False

    def handle(self, *_: object) -> None:
        if self.armed:
            raise KeyboardInterrupt

    @contextmanager
    def after(self, seconds: float) -> Iterator[None]:
        timer = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT))
        self.armed = True
        timer.start()
        try:
            yield
        finally:
            self.armed = False
            timer.join()

    def interrupts(self, work: Callable[[], object], seconds: float) -> None:
        """Start `work` until it is interrupted after so long: it may be over before, where others use the machine."""
        for _ in range(20):
            try:
                with self.after(seconds):
                    work()
            except KeyboardInterrupt:
                return
        raise AssertionError("Ctrl-C came 20 times and none was raised")


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    alarm = Alarm()
    previous = signal.signal(signal.SIGINT, alarm.handle)
    yield alarm
    signal.signal(signal.SIGINT, previous)


@needs_proc
def test_interrupted_while_loading(alarm: Alarm) -> None:
    open_engine().close()
    gc.collect()
    expected, interrupted = held(), 0
    for delay in (0.0, 0.001, 0.002, 0.004, 0.006, 0.01, 0.015, 0.02, 0.03):
        try:
            with alarm.after(delay):
                engine = open_engine()
            engine.close()
        except KeyboardInterrupt:
            interrupted += 1
        engine = None  # one that was made just before the interrupt
    assert interrupted
    assert settles(expected), f"threads and files: {expected} became {held()}: {open_files()}"
    with open_engine() as engine:
        assert engine.generate([1, 2, 3], max_tokens=4, temperature=0, ignore_eos=True).usage.completion_tokens == 4


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_interrupted_while_working(alarm: Alarm, phase: str) -> None:
    with open_engine(max_context=8192, prefix_cache_bytes=0) as engine:
        prompt = [n * 7919 % 4000 for n in range(8000 if phase == "prefill" else 4)]
        tokens = 1 if phase == "prefill" else 8000

        def generate() -> None:
            engine.generate(prompt, max_tokens=tokens, temperature=0, ignore_eos=True)

        for delay in (0.02, 0.05):
            alarm.interrupts(generate, delay)
            # The engine is free again, at the next step at the latest.
            assert engine.generate([5, 6], max_tokens=2, temperature=0, ignore_eos=True).usage.completion_tokens == 2
        with engine.session() as session:

            def prefill() -> None:
                session.truncate(0)
                session.prefill(prompt if phase == "prefill" else prompt * 2000)

            alarm.interrupts(prefill, 0.05)
            assert session.prefill([9, 8]) == 0
            session.decode(3)
            assert session.token_ids == [9, 8, 3]
        use = engine.runtime.state_use
        assert use["kept_slots"] == use["kept_pages"] == 0


@needs_proc
def test_memory_comes_back_from_threads_loops_interrupts_and_close(alarm: Alarm) -> None:
    """All at once, each round on an engine of its own: everybody gets a result or a named error."""
    options = {"temperature": 0, "ignore_eos": True}

    def use(engine: Engine, endings: list[object]) -> None:
        try:
            while True:
                engine.generate([1, 2, 3], max_tokens=20, **options)  # type: ignore[arg-type]
        except BaseException as error:
            endings.append(type(error))

    async def cancel(engine: Engine) -> None:
        task = asyncio.create_task(engine.agenerate([4, 5], max_tokens=1900, **options))  # type: ignore[arg-type]
        await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])

    def work() -> None:
        engine, endings = open_engine(max_context=2048), list[object]()
        threads = [threading.Thread(target=use, args=(engine, endings)) for _ in range(4)]
        for thread in threads:
            thread.start()
        asyncio.run(cancel(engine))
        alarm.interrupts(lambda: engine.generate([6, 7], max_tokens=2000, **options), 0.02)  # type: ignore[arg-type]
        engine.close()
        for thread in threads:
            thread.join()
        assert endings == [EngineClosedError] * 4

    rounds_keep_their_level(work, rounds=6, slack_bytes=8 * MIB)


@needs_proc
def test_memory_of_engines_comes_back() -> None:
    def work() -> None:
        with open_engine() as engine:
            engine.generate([1, 2, 3], max_tokens=8, ignore_eos=True)
            engine.chat([{"role": "user", "content": "Who are you?"}], max_tokens=8)
            with engine.prefill(list(range(300))) as session, session.fork() as branch:
                branch.decode(1)

    rounds_keep_their_level(work, rounds=6, slack_bytes=8 * MIB)


@needs_proc
def test_memory_of_requests_comes_back() -> None:
    with open_engine(prefix_cache_bytes="8MiB") as engine:
        place = iter(range(10**6))

        def work() -> None:
            start = next(place)
            prompt = [(start * 31 + n * 17) % 4000 for n in range(200)]
            engine.generate(prompt, max_tokens=4, ignore_eos=True, logprobs=2)
            stream = engine.stream(prompt, max_tokens=50, ignore_eos=True)
            next(stream)
            stream.close()
            for bad in ({"max_tokens": 5000}, {"stop_token_ids": [5000]}, {"temperatur": 1}):
                with pytest.raises((ValueError, TypeError)):
                    engine.generate(prompt, **bad)  # type: ignore[call-overload]

        rounds_keep_their_level(work, rounds=20, slack_bytes=8 * MIB)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[40] ^= 0x80
    path.write_bytes(content)


@needs_proc
@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", cut),
        ("model.safetensors", flip),
        ("model.safetensors", Path.unlink),
        ("config.json", cut),
        ("config.json", Path.unlink),
        ("tokenizer.json", cut),
        ("tokenizer.json", Path.unlink),
        ("tokenizer_config.json", cut),
        ("chat_template.jinja", cut),
    ],
)
def test_a_model_that_cannot_be_loaded_leaves_nothing(
    lily_nano: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    folder = shutil.copytree(lily_nano, tmp_path / "model")
    damage(folder / name)

    def work() -> None:
        with pytest.raises(LilyError) as caught:
            open_engine(folder)
        assert name in str(caught.value) or "template" in str(caught.value) or "no weights" in str(caught.value)

    rounds_keep_their_level(work, rounds=8, slack_bytes=8 * MIB)


@needs_proc
@pytest.mark.parametrize("option", [{"memory_limit": "1MiB"}, {"device": "cuda"}, {"prefix_cache_bytes": "1B"}])
def test_an_engine_that_cannot_be_made_leaves_nothing(option: dict[str, object]) -> None:
    def work() -> None:
        with pytest.raises((LilyError, ValueError)):
            open_engine(**option)

    rounds_keep_their_level(work, rounds=8, slack_bytes=8 * MIB)


def test_a_forked_child_ends_quietly() -> None:
    code = """
import os, sys
from lily import Engine, EngineClosedError
engine = Engine("lily-nano", max_context=512, memory_limit="1GiB", progress=False)
logits = engine.prefill([1, 2, 3]).logits
child = os.fork()
try:
    engine.generate([1, 2], max_tokens=1)
except EngineClosedError:
    assert child == 0
if child == 0:
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
engine.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


FULL_DISK = """
import logging, os, resource, signal, sys, tempfile
from pathlib import Path
from lily import Engine
folder = Path(sys.argv[1])
logging.basicConfig(level="WARNING", stream=sys.stdout)
# What a full disk does to a write: it fails in the middle of a file.
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
options = dict(max_context=2048, memory_limit="1GiB", progress=False)
with Engine("lily-nano", cache_dir=folder / "cache", **options) as engine:
    prompt = [n * 7919 % 4000 for n in range(1000)]
    first = engine.generate(prompt, max_tokens=4, temperature=0, ignore_eos=True)
    engine.prefix_cache.clear()
    again = engine.generate(prompt, max_tokens=4, temperature=0, ignore_eos=True)
    assert first.token_ids == again.token_ids
    with engine.prefill(prompt) as session:
        try:
            session.save(folder / "session.lily")
        except OSError as error:
            print("OSError", error.strerror, error.filename)
print(sorted(path.name for path in folder.rglob("*") if path.is_file()))
"""


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert any("could not be written" in line and "File too large" in line for line in lines)
    assert f"OSError File too large {tmp_path / 'session.lily'}" in lines
    assert lines[-1] == "[]", "no part of a file is left"
