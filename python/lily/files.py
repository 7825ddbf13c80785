"""The small files of a checkpoint: read whole, or refused with an error that names the file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Final

from .errors import CheckpointError
from .unicode import first_wrong_byte

MAX_BYTES: Final = 1 << 28  # no such file of a real checkpoint has a tenth of it


def read_bytes(path: Path) -> bytes | None:
    """Content of a regular file; None when there is nothing of that name, not even a link. Raises CheckpointError."""
    try:
        # Before it is opened: a pipe would be waited for.
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path}: cannot be read: not a regular file", path=str(path))
        if status.st_size > MAX_BYTES:
            raise CheckpointError(
                f"{path}: {status.st_size} bytes are too many for such a file",
                path=str(path),
                expected=f"at most {MAX_BYTES} bytes",
                found=f"{status.st_size} bytes",
            )
        with open(path, "rb") as file:
            return file.read(MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():  # as in the Hugging Face cache, when a blob is missing
            text = f"{path}: cannot be read: a link to a file that does not exist. Download the checkpoint again"
            raise CheckpointError(text, path=str(path)) from None
        return None
    except CheckpointError:
        raise
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def read_text(path: Path) -> str | None:
    """UTF-8 text of a file, without a byte order mark; None when there is no such file. Raises CheckpointError."""
    content = read_bytes(path)
    if content is None:
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = f"{path}: not UTF-8 text ({first_wrong_byte(error)})"
        raise CheckpointError(text, path=str(path), expected="UTF-8") from error


def read_json(path: Path) -> dict[str, object] | None:
    """The object in a JSON file; None when there is no such file. Raises CheckpointError."""
    content = read_bytes(path)
    if content is None:
        return None
    try:
        values = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also UnicodeDecodeError
        raise CheckpointError(f"{path}: not valid JSON: {error}", path=str(path), expected="JSON") from error
    if not isinstance(values, dict):
        found = shown(values)
        text = f"{path}: expected an object, found {found}"
        raise CheckpointError(text, path=str(path), expected="an object", found=found)
    return values


def home_path(name: str, path: str | Path) -> Path:
    """`path` with the home folder that a "~" or "~user" in front stands for. Raises ValueError if that is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError(f"{name} is {str(path)!r}, but nobody's home folder is known by that name") from None


def shown(value: object) -> str:
    """`value` as JSON, cut to a length that fits a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def _unreadable(path: Path, error: OSError | ValueError) -> CheckpointError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return CheckpointError(f"{path}: cannot be read: {reason}", path=str(path))
