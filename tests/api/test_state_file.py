from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from lily import ContextLengthError, Engine, LilyError, SnapshotError
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
    with pytest.raises(SnapshotError, match="checksum is wrong"):
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
