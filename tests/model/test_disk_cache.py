"""Snapshots on disk: shared by processes, restored when needed, and never believed when damaged."""

import dataclasses
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time
import types

import hypothesis
import numpy as np
import pytest

from lily.disk_cache import MIN_GAIN, DiskCache
from lily.state_file import TEMPORARY, StateFile
from tests.model.rig import BORDER, FINGERPRINTS, Rig, tokens
from tests.model.support import check_gate

PROMPT = [BORDER, *tokens(0, 100), BORDER, *tokens(1, 200)]
MIB = 1 << 20


@pytest.fixture
def rig(checkpoint, tmp_path):
    made = []

    def make(fingerprints=FINGERPRINTS, **options):
        disk = DiskCache(tmp_path / "cache", fingerprints, **options)
        made.append((Rig(checkpoint("qwen3_5_moe"), disk=disk), disk))
        return made[-1]

    yield make
    for one, disk in made:
        disk.close()
        one.close()


def files(tmp_path):
    return sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())


def test_another_engine_continues_from_the_disk(rig, tmp_path):
    first, disk = rig()
    reused, logits = first.reused(PROMPT)
    disk.flush()
    assert reused == 0 and len(files(tmp_path)) == 2, "the system prompt, and all but the last token"
    second, _ = rig()
    assert not second.cache.stats().num_snapshots, "nothing is read before it is asked for"
    reused, again = second.reused(PROMPT)
    assert reused == len(PROMPT) - 1 and second.cache.stats().disk_hits == 1
    check_gate(again, logits.astype(np.float64))
    assert second.reused(PROMPT)[0] == len(PROMPT) - 1 and second.cache.stats().disk_hits == 1, "from memory now"
    assert second.reused([*PROMPT[:101], BORDER, *tokens(9, 30)])[0] == 101 and second.cache.stats().disk_hits == 2
    third, _ = rig()
    assert third.reused(PROMPT[: MIN_GAIN - 1])[0] == 0


def test_a_snapshot_that_left_the_memory_comes_back(rig):
    one, disk = rig()
    one.reused(PROMPT)
    disk.flush()
    one.cache.clear()
    assert one.reused(PROMPT)[0] == len(PROMPT) - 1


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "tokens"])
def test_damage_is_a_miss(rig, tmp_path, damage):
    first, disk = rig()
    first.reused(PROMPT)
    disk.flush()
    for path in files(tmp_path):
        content = bytearray(path.read_bytes())
        if damage == "tokens":  # a sound file under the wrong name
            file = StateFile.read(path, FINGERPRINTS)
            wrong = {name: getattr(file, name) for name in ("recurrent_state", "conv_state", "kv", "logits")}
            StateFile(token_ids=file.token_ids[::-1].copy(), fingerprints=FINGERPRINTS, **wrong).write(path)
            continue
        content[len(content) // 2] ^= 1
        path.write_bytes({"cut": content[:-1], "flip": content, "empty": b""}[damage])
    second, disk = rig()
    assert second.reused(PROMPT)[0] == 0 and second.cache.stats().disk_hits == 0
    disk.flush()
    if damage != "tokens":
        third, _ = rig()
        assert third.reused(PROMPT)[0] == len(PROMPT) - 1, "the damaged file was replaced"


def test_other_fingerprints_do_not_meet(rig):
    first, disk = rig()
    first.reused(PROMPT)
    disk.flush()
    second, _ = rig(fingerprints={"model": "another"})
    assert second.reused(PROMPT)[0] == 0


def test_the_file_used_longest_ago_leaves(rig, tmp_path):
    one, disk = rig(limit_bytes=3 * MIB)
    stale = tmp_path / "cache" / next(os.walk(tmp_path / "cache"))[1][0] / f"x{TEMPORARY}"
    stale.write_bytes(b"left by a crash")
    os.utime(stale, (time.time() - 7200,) * 2)
    for seed in range(8):
        one.reused(tokens(seed, 300))
        disk.flush()
        if seed:
            one.cache.clear()
            assert one.reused(tokens(0, 300))[0] == 299, "used all the time"
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 3 * MIB
    assert not stale.exists()
    one.cache.clear()
    assert one.reused(tokens(1, 300))[0] == 0


def no_space(*_):
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_no_error(rig, tmp_path, monkeypatch, caplog):
    one, disk = rig()
    monkeypatch.setattr(StateFile, "write", no_space)
    one.reused(PROMPT)
    disk.flush()
    assert files(tmp_path) == [] and "No space left" in caplog.text


def test_on_a_full_disk_the_cache_gives_room_back(rig, tmp_path, monkeypatch):
    one, disk = rig()
    one.reused(PROMPT)
    disk.flush()
    assert len(files(tmp_path)) == 2
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=0))
        patch.setattr(StateFile, "write", no_space)
        one.reused(tokens(1, 300))
        disk.flush()
    assert files(tmp_path) == [], "a quarter of what the disk could give is less than one of them"
    one.reused(tokens(2, 300))
    disk.flush()
    assert len(files(tmp_path)) == 1


WORKER = """
import random, sys, time
import numpy as np
from pathlib import Path
from lily.disk_cache import DiskCache
from tests.model.rig import BORDER, FINGERPRINTS, Rig, tokens
from tests.model.support import check_gate, prefill

folder, cache, seed, seconds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
rng = random.Random(seed)
disk = DiskCache(cache, FINGERPRINTS, limit_bytes=4 << 20)
end, rounds = time.monotonic() + seconds, 0
with Rig(folder, disk=disk) as rig:
    while time.monotonic() < end or rounds < 10 or not rig.cache.stats().disk_hits:
        stem, ending = rng.randrange(4), rng.randrange(6)
        prompt = [BORDER, *tokens(stem, 90 + 40 * stem), BORDER, *tokens(100 + ending, 70)]
        reused, logits = rig.reused(prompt)
        timeline = rig.runtime.timeline()
        check_gate(logits, prefill(rig.runtime, timeline, prompt).astype(np.float64))
        timeline.close()
        rounds += 1
        if rng.random() < 0.5:
            rig.cache.clear()
    stats = rig.cache.stats()
    disk.close()
print(rounds, stats.disk_hits)
"""


def test_two_processes_share_a_folder(checkpoint, tmp_path):
    soak = hypothesis.settings().max_examples > hypothesis.settings.get_profile("default").max_examples
    seconds = 600 if soak else 2
    cache = tmp_path / "cache"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(checkpoint("qwen3_5_moe")), str(cache), str(seed), str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in range(2)
    ]
    rng = random.Random(7)
    end = time.monotonic() + seconds
    while time.monotonic() < end:  # a third party damages what it finds
        time.sleep(0.1)
        if found := [path for path in files(tmp_path) if path.suffix == ".lily"]:
            path = rng.choice(found)
            try:
                content = bytearray(path.read_bytes())
                content[rng.randrange(len(content))] ^= 255
                damaged = path.with_suffix(".damaged")
                damaged.write_bytes(content)
                os.replace(damaged, path)
            except (FileNotFoundError, ValueError):
                continue
    for worker in workers:
        output, errors = worker.communicate(timeout=seconds + 300)
        assert worker.returncode == 0, errors
        rounds, disk_hits = map(int, output.split())
        assert rounds >= 10 and disk_hits > 0
    assert not [path for path in files(tmp_path) if path.name.endswith(TEMPORARY)]
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 6 * MIB


def test_foreign_things_in_the_folder_do_no_harm(rig, tmp_path):
    """Folders, pipes and links under the names of states are no states; what has other names stays where it is."""
    first, disk = rig(limit_bytes=MIB)
    first.reused(PROMPT)
    disk.flush()
    states = files(tmp_path)
    folder = states[0].parent
    for state in states:
        state.unlink()
    (folder / states[0].name).mkdir()
    os.mkfifo(folder / states[1].name)
    (folder / ("00000100-" + "0" * 32 + ".lily")).symlink_to("/dev/zero")
    (folder / ("00000101-" + "0" * 32 + ".lily")).symlink_to(folder / "nothing")
    (folder / "99-x.lily").write_bytes(b"somebody's")
    (tmp_path / "cache" / "notes.lily").write_bytes(b"mine" * MIB)
    second, disk = rig(limit_bytes=MIB)
    assert second.reused(PROMPT)[0] == 0
    for seed in range(6):
        second.reused(tokens(seed, 300))
        disk.flush()
    assert sum(path.stat().st_size for path in files(tmp_path) if "-" in path.name and path.parent == folder) <= MIB
    assert (folder / "99-x.lily").exists() and (tmp_path / "cache" / "notes.lily").exists()
    assert (folder / states[0].name).is_dir()


def test_a_folder_that_was_cleared_meanwhile_is_filled_again(rig, tmp_path):
    one, disk = rig()
    shutil.rmtree(tmp_path / "cache")
    one.reused(PROMPT)
    disk.flush()
    assert len(files(tmp_path)) == 2
    one.cache.clear()
    assert one.reused(PROMPT)[0] == len(PROMPT) - 1


def test_models_share_the_limit_of_their_folder_and_never_a_state(rig, tmp_path):
    one, disk = rig(limit_bytes=2 * MIB)
    other, other_disk = rig(fingerprints={"model": "another"}, limit_bytes=2 * MIB)
    for seed in range(4):
        one.reused(tokens(seed, 300))
        disk.flush()
        assert other.reused(tokens(seed, 300))[0] == 0, "of another model, however alike the prompts are"
        other_disk.flush()
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 2 * MIB
    assert len({path.parent for path in files(tmp_path)}) == 2
    one.cache.clear()
    assert one.reused(tokens(3, 300))[0] == 299


def test_a_state_of_another_model_with_the_same_fingerprints_is_a_miss(rig, tmp_path, caplog):
    """Only a forger can make one: the file is whole, and says what this engine's files say."""
    first, disk = rig()
    expected = first.reused(PROMPT)[1]
    disk.flush()
    for path in files(tmp_path):
        file = StateFile.read(path, FINGERPRINTS)
        dataclasses.replace(file, recurrent_state=file.recurrent_state[:1]).write(path)
    second, disk = rig()
    with second.session() as session:
        session.prefill(PROMPT[:50])
        assert session.prefill(PROMPT) == 49, "from memory: what the session held made room for the file"
        check_gate(session.logits, expected.astype(np.float64))
    assert "recurrent_state has" in caplog.text and second.cache.stats().disk_hits == 0
    disk.flush()
    second.cache.clear()
    reused, logits = second.reused(PROMPT)
    assert reused == len(PROMPT) - 1, "the file was replaced by what was computed"
    check_gate(logits, expected.astype(np.float64))


def test_a_cache_dir_that_cannot_be_one_is_an_error_that_says_so(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    for place in ("file", "file/below"):
        with pytest.raises(OSError, match="cache_dir must be a folder that this process can write to") as caught:
            DiskCache(tmp_path / place, FINGERPRINTS)
        assert caught.value.filename == str(tmp_path / place)
    with pytest.raises(ValueError, match=r"cache_dir 'a\\x00b' cannot be a folder"):
        DiskCache(pathlib.Path("a\0b"), FINGERPRINTS)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root, who may run this, can write everywhere
    with pytest.raises(PermissionError, match="cache_dir must be a folder that this process can write to; give anoth"):
        DiskCache(tmp_path / "new", FINGERPRINTS)


def test_a_disk_that_is_too_slow_costs_no_memory(rig, tmp_path, monkeypatch):
    """What waits for it is bounded; the rest is not written."""
    one, disk = rig()
    gate, write = threading.Event(), StateFile.write

    def slow_write(file, path):
        gate.wait(60)
        write(file, path)

    size = StateFile.num_bytes.fget
    monkeypatch.setattr(StateFile, "num_bytes", property(lambda file: size(file) + (100 << 20)))
    monkeypatch.setattr(StateFile, "write", slow_write)
    for seed in range(8):
        one.reused(tokens(seed, 100))
    gate.set()
    disk.flush()
    assert len(files(tmp_path)) == 3, "256 MiB, and the one that crossed the line"
    one.reused(tokens(9, 100))
    disk.flush()
    assert len(files(tmp_path)) == 4, "now there is room again"
