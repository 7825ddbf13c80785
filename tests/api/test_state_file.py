from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from lily import ContextLengthError, Engine, EngineClosedError, LilyError, SnapshotError
from lily.config import load_config
from lily.fingerprint import fingerprints, identity
from lily.state_file import StateFile

FINGERPRINTS = {"model": "m1", "template": "t1"}


def small(num_tokens: int = 3) -> StateFile:
    numbers = np.random.default_rng(num_tokens)
    return StateFile(
        token_ids=np.arange(num_tokens, dtype=np.uint32),
        recurrent_state=numbers.standard_normal((2, 2, 4, 4), np.float32),
        conv_state=numbers.standard_normal((2, 3, 5), np.float32),
        kv=[numbers.standard_normal((2, 1, num_tokens, 4), np.float32) for _ in range(2)],
        logits=numbers.standard_normal(7, np.float32),
        fingerprints=FINGERPRINTS,
    )


def test_round_trip_and_any_reader(tmp_path: Path) -> None:
    file = small()
    file.write(tmp_path / "a.lily")
    assert os.listdir(tmp_path) == ["a.lily"]
    back = StateFile.read(tmp_path / "a.lily", FINGERPRINTS)
    for name, values in file.tensors().items():
        np.testing.assert_array_equal(back.tensors()[name], values)
        assert back.tensors()[name].dtype == values.dtype
    with safe_open(tmp_path / "a.lily", "np") as other:
        assert set(other.keys()) == set(file.tensors())
        np.testing.assert_array_equal(other.get_tensor("kv.1"), file.kv[1])
        assert other.metadata()["model"] == "m1" and len(other.metadata()["checksum"]) == 64


def test_every_damaged_byte_and_every_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.lily"
    small().write(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        with pytest.raises(SnapshotError):
            StateFile.read(path, FINGERPRINTS)
    for length in [*range(0, len(whole), 37), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(SnapshotError):
            StateFile.read(path, FINGERPRINTS)
    path.write_bytes(whole + b"\0")
    with pytest.raises(SnapshotError, match=rf"it has {len(whole) + 1} bytes, its header says {len(whole)}"):
        StateFile.read(path, FINGERPRINTS)


def test_fingerprints_must_agree(tmp_path: Path) -> None:
    path = tmp_path / "a.lily"
    small().write(path)
    for other in ({**FINGERPRINTS, "template": "t2"}, {"model": "m1"}, {**FINGERPRINTS, "dtype": "float32"}):
        with pytest.raises(SnapshotError, match=r"saved with another (template|dtype)") as caught:
            StateFile.read(path, other)
        assert caught.value.path == str(path) and "another" in caught.value.reason
    with pytest.raises(SnapshotError, match="cannot be read: No such file"):
        StateFile.read(tmp_path / "none.lily", FINGERPRINTS)
    assert issubclass(SnapshotError, LilyError) and issubclass(SnapshotError, ValueError)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.lily"
    small(3).write(path)

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "fsync", full_disk)
        small(4).write(path)
    assert os.listdir(tmp_path) == ["a.lily"]
    assert len(StateFile.read(path, FINGERPRINTS).token_ids) == 3


def test_fingerprints_of_a_model(nano_folder: Path, tmp_path: Path) -> None:
    config = load_config(nano_folder)
    original = fingerprints(nano_folder, config, "float32", "template", identity(nano_folder))
    for path in nano_folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert fingerprints(tmp_path, config, "float32", "template", identity(tmp_path)) == original, (
        "of the content, not of place or time"
    )

    def changed(**arguments: str) -> set[str]:
        options = {"dtype": "float32", "chat_template": "template"} | arguments
        now = fingerprints(tmp_path, config, options["dtype"], options["chat_template"], identity(tmp_path))
        return {name for name in now if now[name] != original[name]}

    assert changed(dtype="float16") == {"dtype"} and changed(chat_template="other") == {"template"}
    weights = tmp_path / "model.safetensors"
    content = bytearray(weights.read_bytes())

    header = int.from_bytes(content[:8], "little")
    content[8 + header] ^= 1
    weights.write_bytes(content)
    assert changed() == {"model"}
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(tokenizer.read_bytes() + b"\n")
    assert changed() == {"model", "tokenizer"}


def test_sessions_survive_on_disk(engine: Engine, tmp_path: Path) -> None:
    ids = engine.tokenize("Sessions are saved to files and loaded again.")
    path = tmp_path / "session.lily"
    with engine.prefill(ids) as session:
        session.decode(11)
        session.save(path)
        logits = session.logits.copy()
        session.decode(12)
        after = session.logits.copy()
    with Engine("lily-nano", max_context=512, progress=False) as other, other.load_session(path) as loaded:
        assert loaded.token_ids == [*ids, 11]
        np.testing.assert_array_equal(loaded.logits, logits)
        loaded.decode(12)
        np.testing.assert_allclose(loaded.logits, after, atol=1e-4 * np.abs(after).max())
        with loaded.fork() as fork:
            fork.truncate(0)
            with pytest.raises(ValueError, match="no tokens to save"):
                fork.save(path)
    with (
        Engine("lily-nano", max_context=8, progress=False) as short,
        pytest.raises(ContextLengthError, match="holds 8"),
    ):
        short.load_session(path)
    with (
        Engine("lily-nano", max_context=512, progress=False, chat_template="{{ messages }}") as changed,
        pytest.raises(SnapshotError, match="another template"),
    ):
        changed.load_session(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match="checksum is wrong"):
        engine.load_session(path)
    with pytest.raises(SnapshotError, match="cannot be read"):
        engine.load_session(tmp_path)


def test_a_link_stays_a_link(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    file, link, dangling = tmp_path / "disk" / "a.lily", tmp_path / "link.lily", tmp_path / "new.lily"
    file.write_bytes(b"old")
    link.symlink_to("disk/a.lily")
    dangling.symlink_to(tmp_path / "disk" / "b.lily")
    with engine.prefill([1, 2, 3]) as session:
        session.save(link)
        session.save(dangling)
    assert (os.readlink(link), os.readlink(dangling)) == ("disk/a.lily", str(tmp_path / "disk" / "b.lily"))
    assert sorted(os.listdir(tmp_path / "disk")) == ["a.lily", "b.lily"]
    for path in (file, link, dangling):
        with engine.load_session(path) as loaded:
            assert loaded.token_ids == [1, 2, 3]


def test_names_that_no_file_can_have(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("no-folder/a.lily")
    with engine.prefill([1, 2, 3]) as session:
        for name, expected in (
            ("a\0b", "no file can have this name"),
            ("a\ud800", "no file can have this name"),
            ("loop", "leads to itself"),
            ("lost", "no such folder"),
        ):
            with pytest.raises(OSError, match=expected):
                session.save(tmp_path / name)
            with pytest.raises(SnapshotError, match="cannot be read"):
                engine.load_session(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["loop", "lost"]


def forged(path: Path, edit: Callable[[dict[str, Any]], object], data: bytes | None = None) -> None:
    """A file with another header, or other data, and a checksum that is right."""
    small().write(path)
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    edit(header)
    header["__metadata__"] = {"checksum": "0" * 64, **header["__metadata__"]}
    text = json.dumps(header, separators=(",", ":")).encode()
    content = struct.pack("<Q", len(text)) + text + (whole[8 + length :] if data is None else data)
    path.write_bytes(content.replace(b"0" * 64, hashlib.sha256(content).hexdigest().encode(), 1))


@pytest.mark.parametrize(
    "edit",
    [
        lambda header: header.pop("kv.1"),
        lambda header: header.update(more=header["kv.1"]),
        lambda header: header["token_ids"].update(shape=[3, 1]),
        lambda header: header["token_ids"].update(shape=[2]),
        lambda header: header["token_ids"].update(dtype="F32"),
        lambda header: header["token_ids"].update(data_offsets=[0, 0], shape=[0]),
        lambda header: header["token_ids"].update(data_offsets=[-12, 0]),
        lambda header: header["kv.0"].update(dtype="BF16"),
        lambda header: header["kv.0"].update(shape=[2, 1, 4, 3]),
        lambda header: header["kv.0"].update(shape=[]),
        lambda header: header["logits"].pop("shape"),
        lambda header: header.update(logits=3),
        lambda header: header["__metadata__"].pop("num_layers"),
        lambda header: header["__metadata__"].update(num_layers="many"),
        lambda header: header["__metadata__"].update(num_layers="3"),
        lambda header: header["__metadata__"].update(format="lily-state-0"),
        lambda header: header.pop("recurrent_state"),
    ],
)
def test_a_forged_file_is_an_error_of_its_own(tmp_path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    forged(tmp_path / "a.lily", edit)
    with pytest.raises(SnapshotError, match=r"a\.lily cannot be used"):
        StateFile.read(tmp_path / "a.lily", FINGERPRINTS)


def test_a_forged_header_that_changes_nothing_is_read(tmp_path: Path) -> None:
    """The forger of the test above is right about the checksum."""
    forged(tmp_path / "a.lily", lambda header: None)
    assert StateFile.read(tmp_path / "a.lily", FINGERPRINTS).token_ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 8, b"\xff" * 8, b"\2" + b"\0" * 7 + b"{}", struct.pack("<Q", 2**63) + b"[" * 10**6]
)
def test_what_is_no_state_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.lily").write_bytes(content)
    with pytest.raises(SnapshotError, match="no state file"):
        StateFile.read(tmp_path / "a.lily", FINGERPRINTS)


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.lily")
    (tmp_path / "zero.lily").symlink_to("/dev/zero")
    for name in ("pipe.lily", "zero.lily"):
        with pytest.raises(SnapshotError, match="no regular file"):
            StateFile.read(tmp_path / name, FINGERPRINTS)
    small().write(tmp_path / "sparse.lily")
    os.truncate(tmp_path / "sparse.lily", 1 << 42)
    with pytest.raises(SnapshotError, match="it has 4398046511104 bytes"):
        StateFile.read(tmp_path / "sparse.lily", FINGERPRINTS)


def test_a_state_of_other_sizes_is_an_error_of_its_own(engine: Engine, tmp_path: Path) -> None:
    """Of a file whose fingerprints are this engine's: nothing but its content is wrong."""
    path = tmp_path / "session.lily"
    with engine.prefill([1, 2, 3]) as session:
        session.save(path)
        own = session._fingerprints()
    right = StateFile.read(path, own)
    for changed in (
        {"token_ids": np.array([1, 2, 4096], np.uint32)},
        {"recurrent_state": right.recurrent_state[:1]},
        {"conv_state": right.conv_state[:, :2]},
        {"kv": right.kv[:0]},
        {"kv": [layer[..., :8] for layer in right.kv]},
        {"kv": [layer.astype(np.float32) for layer in right.kv]},
        {"logits": np.zeros(4095, np.float32)},
    ):
        dataclasses.replace(right, **changed).write(path)  # type: ignore[arg-type]
        with pytest.raises(SnapshotError, match="cannot be used"):
            engine.load_session(path)
    right.write(path)
    with engine.load_session(path) as session:
        assert session.token_ids == [1, 2, 3]


def test_a_closed_engine_says_so_whatever_the_file(tmp_path: Path) -> None:
    engine = Engine("lily-nano", max_context=512, progress=False)
    engine.close()
    with pytest.raises(EngineClosedError):
        engine.load_session(tmp_path / "missing.lily")
