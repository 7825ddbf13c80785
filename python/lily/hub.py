"""Where a model's files are: a folder, a model that comes with lily, or the local Hugging Face cache."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from .errors import CheckpointError

PACKAGED: Final = ("lily-nano",)  # models that come with lily


def find_model(model: str | Path, revision: str | None = None) -> Path:
    """Folder of `model`: a path, "lily-nano", or a Hugging Face id such as "org/name" that was downloaded before.

    Never downloads. Raises CheckpointError, saying how to get the files, if they are not on this machine.
    """
    if not str(model).strip():  # Path("") is the current folder, which nobody asked for
        raise CheckpointError(
            "model is empty; give a folder ('.' is the current one), a Hugging Face id (org/name) or 'lily-nano'",
            path=str(model),
        )
    if revision is not None and not isinstance(revision, str):
        raise TypeError(f"revision must be a str, not {type(revision).__name__}")
    try:
        folder = Path(model).expanduser()
        is_folder, is_file = folder.is_dir(), folder.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # no permission, too long, a zero byte, no such user
        raise CheckpointError(f"the folder {str(model)!r} cannot be used: {error}", path=str(model)) from error
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise CheckpointError(
            f"the name of the folder {str(model)!r} is not UTF-8; rename it", path=str(model), expected="UTF-8"
        ) from None
    if is_file:
        raise CheckpointError(f"{str(model)!r} is a file; give the folder that it is in", path=str(model))
    if is_folder:
        if revision is not None:
            raise ValueError(f"revision {revision!r} is of a Hugging Face id, but {str(model)!r} is a folder")
        return folder
    if str(model) in PACKAGED:
        if revision is not None:
            raise ValueError(f"revision {revision!r} is of a Hugging Face id, but {str(model)!r} comes with lily")
        return Path(__file__).parent / "models" / str(model)
    if isinstance(model, Path) or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", model):
        raise CheckpointError(
            f"there is no folder {str(model)!r}; give a folder, a Hugging Face id (org/name) or 'lily-nano'",
            path=str(model),
        )
    return _cached(model, revision)


def _cached(repo_id: str, revision: str | None) -> Path:
    # Imported here: only a Hugging Face id needs it.
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        config = try_to_load_from_cache(repo_id, "config.json", revision=revision)
    except HFValidationError as error:
        raise CheckpointError(f"{repo_id!r} is neither a folder nor a Hugging Face id: {error}", path=repo_id) from None
    if isinstance(config, str):
        return Path(config).parent
    at = f" --revision {revision}" if revision else ""
    raise CheckpointError(
        f"{repo_id!r} is neither a folder nor in the local Hugging Face cache"
        f"{f' at revision {revision}' if revision else ''}. Get it with: lily download {repo_id}{at}",
        path=repo_id,
    )
