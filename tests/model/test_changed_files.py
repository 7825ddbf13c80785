"""Weights that lie in mapped files: what happens when somebody changes the files while they are in use."""

import os
import shutil
import struct
from pathlib import Path

import pytest

from lily import Engine, _core
from lily.config import load_config
from lily.errors import CheckpointError

PROMPT = list(range(40))


@pytest.fixture
def aligned(tmp_path: Path, lily_nano: Path) -> Path:
    """lily-nano, with weights that are used where they lie in the file."""
    return copy_model(lily_nano, tmp_path / "aligned", padding=0)


@pytest.fixture
def unaligned(tmp_path: Path, lily_nano: Path) -> Path:
    """The same, with weights that have to be copied."""
    return copy_model(lily_nano, tmp_path / "unaligned", padding=1)


def copy_model(folder: Path, to: Path, *, padding: int) -> Path:
    """A copy whose tensor data starts `padding` bytes behind a multiple of 64."""
    shutil.copytree(folder, to)
    content = (folder / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header, data = content[8 : 8 + size].rstrip(b" "), content[8 + size :]
    header += b" " * (-(8 + len(header)) % 64 + padding)
    (to / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    return to


def open_engine(folder: Path) -> Engine:
    return Engine(folder, max_context=512, memory_limit="1GiB")


def answer(engine: Engine) -> list[int]:
    engine.prefix_cache.clear()
    return engine.generate(PROMPT, max_tokens=8, temperature=0, ignore_eos=True).token_ids


def test_a_truncated_file_ends_requests_not_the_process(aligned: Path) -> None:
    weights = aligned / "model.safetensors"
    content, modified = weights.read_bytes(), weights.stat().st_mtime_ns
    with open_engine(aligned) as engine:
        assert engine.runtime.load_report["mapped_bytes"] > 0
        session = engine.prefill(PROMPT)
        os.truncate(weights, 4096)
        for _ in range(2):
            with pytest.raises(CheckpointError, match=r"size changed .*expected \d+ bytes, found 4096.*Load the") as e:
                answer(engine)
            assert e.value.path == str(weights)
        with pytest.raises(CheckpointError, match="size changed"):
            session.decode(1)
        # Bytes that were once lost stay lost, even if the file looks as before.
        weights.write_bytes(content)
        os.utime(weights, ns=(modified, modified))
        with pytest.raises(CheckpointError, match="could not be read"):
            answer(engine)
    with open_engine(aligned) as engine:
        answer(engine)


def test_a_file_that_is_written_to_is_refused(aligned: Path) -> None:
    weights = aligned / "model.safetensors"
    with open_engine(aligned) as engine:
        answer(engine)
        with weights.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x17")
        with pytest.raises(CheckpointError, match="written to while it was in use"):
            answer(engine)


def test_a_file_replaced_by_rename_changes_nothing(aligned: Path) -> None:
    weights = aligned / "model.safetensors"
    with open_engine(aligned) as engine:
        expected = answer(engine)
        other = aligned / "other"
        other.write_bytes(bytes(weights.stat().st_size))
        other.replace(weights)
        assert answer(engine) == expected
        weights.unlink()
        assert answer(engine) == expected


def test_copied_weights_do_not_need_the_file(unaligned: Path) -> None:
    weights = unaligned / "model.safetensors"
    with open_engine(unaligned) as engine:
        assert engine.runtime.load_report["mapped_bytes"] == 0
        expected = answer(engine)
        os.truncate(weights, 0)
        assert answer(engine) == expected


@pytest.mark.parametrize("length", [0, 4096, None])
def test_a_file_that_changes_while_it_is_loaded(aligned: Path, length: int | None) -> None:
    weights = aligned / "model.safetensors"
    size = weights.stat().st_size

    def progress(done: int, total: int) -> None:
        if done == total:
            os.truncate(weights, size if length is None else length)

    config = _core.ModelConfig(**load_config(aligned).core_arguments())
    with pytest.raises(CheckpointError, match="size changed" if length is not None else "written to"):
        _core.load_weights(str(aligned), config, progress=progress)


def test_many_engines_of_one_file(aligned: Path, tmp_path: Path) -> None:
    """The handler finds the mapping that was lost, and no other."""
    copy = tmp_path / "copy"
    shutil.copytree(aligned, copy)
    with open_engine(aligned) as first, open_engine(copy) as second:
        expected = answer(first)
        os.truncate(copy / "model.safetensors", 4096)
        with pytest.raises(CheckpointError):
            answer(second)
        assert answer(first) == expected


@pytest.mark.parametrize("change", ["weights", "tokenizer", "removed"])
def test_states_of_a_replaced_model_are_not_saved_under_the_new_name(
    aligned: Path, tmp_path: Path, change: str
) -> None:
    path = aligned / ("tokenizer.json" if change == "tokenizer" else "model.safetensors")
    other = tmp_path / "other"
    shutil.copy(path, other)
    with open_engine(aligned) as engine, engine.prefill(PROMPT) as session:
        if change == "removed":
            path.unlink()
        else:
            other.replace(path)
        with pytest.raises(CheckpointError, match="changed since the model was loaded"):
            session.save(tmp_path / "session.lily")
        assert not (tmp_path / "session.lily").exists()


def test_a_model_that_was_named_before_goes_on_saving(aligned: Path, tmp_path: Path) -> None:
    with open_engine(aligned) as engine, engine.prefill(PROMPT) as session:
        session.save(tmp_path / "session.lily")
        (aligned / "model.safetensors").unlink()
        session.decode(5)
        session.save(tmp_path / "session.lily")
        with engine.load_session(tmp_path / "session.lily") as loaded:
            assert loaded.token_ids == session.token_ids
