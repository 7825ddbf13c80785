"""What a saved state depends on, as short digests: a state that was computed with anything else must not be used."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Final

from .config import ModelConfig

_NUM_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 4096


def fingerprints(folder: Path, config: ModelConfig, dtype: str, chat_template: str | None) -> dict[str, str]:
    """Digests by name of the model, its quantisation, the computation's type, the tokenizer and the chat template."""
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
    return sorted(folder.glob("*.safetensors"))


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
