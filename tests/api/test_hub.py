from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from lily import CheckpointError
from lily.hub import find_model


def test_folders_and_the_packaged_model(tmp_path: Path) -> None:
    assert find_model(tmp_path) == find_model(str(tmp_path)) == tmp_path
    assert (find_model("lily-nano") / "config.json").is_file()
    with pytest.raises(ValueError, match="revision"):
        find_model(tmp_path, "main")


def test_a_downloaded_model_is_found_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def cached(repo_id: str, filename: str, *, revision: str | None) -> str | None:
        assert (repo_id, filename) == ("org/name", "config.json")
        return str(tmp_path / filename) if revision in (None, "v1") else None

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", cached)
    assert find_model("org/name") == find_model("org/name", "v1") == tmp_path
    with pytest.raises(CheckpointError, match=r"at revision v2\. Get it with: lily download org/name --revision v2"):
        find_model("org/name", "v2")


@pytest.mark.parametrize("model", ["nothing", "a/b/c", Path("org/name")])
def test_what_is_neither(model: str | Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="there is no folder"):
        find_model(model)


def test_what_cannot_be_used(tmp_path: Path, as_nobody: Callable[[], AbstractContextManager[None]]) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    for model, match in [
        (tmp_path / "model.safetensors", "is a file; give the folder"),
        ("x" * 5000, "cannot be used: .*too long"),
        ("~nobody-of-this-name/model", "cannot be used: "),
        ("a\0b", "there is no folder"),
        (tmp_path / os.fsdecode(b"\xff"), "is not UTF-8; rename it"),
        ("org/name..with--dots", "neither a folder nor a Hugging Face id"),
    ]:
        with pytest.raises(CheckpointError, match=match):
            find_model(model)
    (tmp_path / "closed" / "model").mkdir(parents=True)
    (tmp_path / "closed").chmod(0)
    with as_nobody(), pytest.raises(CheckpointError, match="Permission denied"):
        find_model(tmp_path / "closed" / "model")
    with pytest.raises(TypeError):
        find_model(5)  # type: ignore[arg-type]
