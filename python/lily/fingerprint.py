"""What a saved state depends on, as short digests: a state that was computed with anything else must not be used."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from .config import ModelConfig
from .errors import CheckpointError

_NUM_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096


# What tells whether a file is still the same one: name, inode, size in bytes, time of the last change in ns.
Identity = tuple[tuple[str, int, int, int], ...]


def identity(folder: Path) -> Identity:
    """Of the files that fingerprints are taken of, as far as they are there."""
    found = []
    for path in (*_shards(folder), folder / "tokenizer.json"):
        with suppress(OSError):
            status = path.stat()
            found.append((path.name, status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


def fingerprints(
    folder: Path, config: ModelConfig, dtype: str, chat_template: str | None, loaded: Identity
) -> dict[str, str]:
    """Digests by name of the model, its quantisation, the computation's type, the tokenizer and the chat template.

    loaded: the files as they were when the model was loaded. Raises CheckpointError if they are others now: the model
    goes on with what it has, but nothing would say what that was.
    """
    if identity(folder) == loaded:
        digests = _digests(folder, config, dtype, chat_template)
        if identity(folder) == loaded:
            return digests
    raise CheckpointError(
        f"{folder}: the files changed since the model was loaded, so nothing names its states. Load the model again",
        path=str(folder),
        expected="the files that were loaded",
    )


def _digests(folder: Path, config: ModelConfig, dtype: str, chat_template: str | None) -> dict[str, str]:
    arguments = dict(config.core_arguments())
    quantization = arguments.pop("quantization")
    return {
        "model": _digest(json.dumps(arguments, sort_keys=True, default=str).encode(), *map(_weights, _shards(folder))),
        "quantization": _digest(json.dumps(quantization, sort_keys=True, default=str).encode()),
        "dtype": dtype,
        "tokenizer": tokenizer_fingerprint(folder),
        "template": _digest((chat_template or "").encode()),
    }


def tokenizer_fingerprint(folder: Path) -> str:
    """The part of `fingerprints` that says what token ids mean."""
    return _digest((folder / "tokenizer.json").read_bytes())


def _shards(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.safetensors") if path.is_file())


def _weights(path: Path) -> bytes:
    """The header of a safetensors file and samples all over its data: reading all would take as long as loading."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        parts = [path.name.encode(), size.to_bytes(8, "little"), file.read(length)]
        for index in range(_NUM_SAMPLES):
            file.seek(8 + length + (size - 8 - length) * index // _NUM_SAMPLES)
            parts.append(file.read(_SAMPLE_BYTES))
    return b"".join(parts)


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:32]
