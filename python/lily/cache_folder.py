"""A folder of the prefix cache seen from outside: what its files hold, without an engine."""

from __future__ import annotations

import json
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .state_file import FORMAT, TEMPORARY

_MODEL_FOLDER: Final = re.compile(r"[0-9a-f]{16}")
STATE_NAME: Final = re.compile(r"(\d{8})-[0-9a-f]{32}\.lily")
_MAX_HEADER_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPrompt:
    """One file: the beginning of a prompt, by its name. num_tokens is the length that the name says."""

    path: Path
    num_tokens: int
    num_bytes: int
    last_used: float  # seconds since 1970

    def read_tokens(self) -> tuple[dict[str, str], NDArray[np.uint32]]:
        """Fingerprints and token ids [n], without reading the state. Raises ValueError for a damaged beginning."""
        with self.path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
            if length > _MAX_HEADER_BYTES:
                raise ValueError(f"{self.path}: it is no state file")
            try:
                header = json.loads(file.read(length))
                metadata, entry = header["__metadata__"], header["token_ids"]
                begin, end = entry["data_offsets"]
                if metadata["format"] != FORMAT or entry["dtype"] != "U32" or end - begin != 4 * self.num_tokens:
                    raise KeyError
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{self.path}: it is no state file of this version") from None
            file.seek(8 + length + begin)
            token_ids = np.frombuffer(file.read(end - begin), "<u4")
        if len(token_ids) != self.num_tokens:
            raise ValueError(f"{self.path}: it was cut off")
        return {str(name): str(value) for name, value in metadata.items()}, token_ids


def cached_prompts(cache_dir: Path) -> Iterator[CachedPrompt]:
    """The files of all models in a cache_dir. Raises ValueError if it is no folder."""
    if not cache_dir.is_dir():
        raise ValueError(
            f"there is no folder {str(cache_dir)!r}; give the cache_dir of an Engine, or --cache-dir of a command"
        )
    for folder in sorted(cache_dir.iterdir()):
        if not (_MODEL_FOLDER.fullmatch(folder.name) and folder.is_dir()):
            continue
        for path in _entries(folder):
            match = STATE_NAME.fullmatch(path.name)
            with suppress(FileNotFoundError):  # another process may remove it
                status = path.stat()
                if match and stat.S_ISREG(status.st_mode):
                    yield CachedPrompt(
                        path=path, num_tokens=int(match[1]), num_bytes=status.st_size, last_used=status.st_mtime
                    )


def _entries(folder: Path) -> list[Path]:
    with suppress(FileNotFoundError):  # another process may remove it
        return sorted(folder.iterdir())
    return []


def clear_folder(cache_dir: Path) -> tuple[int, int]:
    """Remove the files of the prefix cache, and nothing else, from a cache_dir; returns their number and bytes."""
    num_files = num_bytes = 0
    for prompt in list(cached_prompts(cache_dir)):
        with suppress(FileNotFoundError):
            prompt.path.unlink()
            num_files += 1
            num_bytes += prompt.num_bytes
    for folder in cache_dir.iterdir():
        if _MODEL_FOLDER.fullmatch(folder.name) and folder.is_dir():
            for path in folder.glob(f"*.lily.*{TEMPORARY}"):
                path.unlink(missing_ok=True)
            with suppress(OSError):  # other files are there
                folder.rmdir()
    return num_files, num_bytes
