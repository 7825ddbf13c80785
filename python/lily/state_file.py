"""State of a timeline as one file: safetensors that any reader opens, with a checksum over every byte.

Layout: the header's metadata starts with "checksum", the SHA-256 of the whole file with that text replaced by zeros.
So nothing in a file is believed, not even its header, before all of it is known to be as it was written.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .errors import SnapshotError

FORMAT: Final = "lily-state-1"
TEMPORARY: Final = ".partial"  # end of the names of files that are being written
_START: Final = b'{"__metadata__":{"checksum":"'
_NO_CHECKSUM: Final = b"0" * 64
_CHECKSUM_OFFSET: Final = 8 + len(_START)
_DTYPES: Final[dict[str, np.dtype[Any]]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "U32": np.dtype("<u4")}

Floats = NDArray[np.float32]
Halves = NDArray[np.float16]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """What a file holds: tokens [n], the state after them, and the logits [V] after the last one, if there are any.

    recurrent_state: [linear layers, Hv, dk, dv]; conv_state: [linear layers, 3, C]; kv: per attention layer
    [2, Hkv, n, D]; all float32, kv float16 where the engine keeps it so. fingerprints: of all that the state depends
    on, by name.
    """

    token_ids: NDArray[np.uint32]
    recurrent_state: Floats
    conv_state: Floats
    kv: Sequence[Floats | Halves]
    logits: Floats | None
    fingerprints: Mapping[str, str]

    def tensors(self) -> dict[str, NDArray[np.generic]]:
        named: dict[str, NDArray[np.generic]] = {
            "token_ids": self.token_ids,
            "recurrent_state": self.recurrent_state,
            "conv_state": self.conv_state,
        }
        named |= {f"kv.{layer}": values for layer, values in enumerate(self.kv)}
        if self.logits is not None:
            named["logits"] = self.logits
        return named

    def write(self, path: Path) -> None:
        """Write the file as a whole or not at all: to a temporary name, onto the disk, then renamed. Raises OSError."""
        tensors = {name: np.ascontiguousarray(values) for name, values in self.tensors().items()}
        header = _header(tensors, {"format": FORMAT, "num_layers": str(len(self.kv)), **self.fingerprints})
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
        try:
            with temporary.open("xb") as file:
                digest = hashlib.sha256()
                for part in (np.frombuffer(header, np.uint8), *tensors.values()):
                    digest.update(part.data)
                    file.write(part.data)
                file.seek(_CHECKSUM_OFFSET)
                file.write(digest.hexdigest().encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        _sync_folder(path.parent)

    @staticmethod
    def read(path: Path, fingerprints: Mapping[str, str]) -> StateFile:
        """Read a file that must have these fingerprints. Raises SnapshotError for any damage or difference."""
        try:
            content = np.fromfile(path, np.uint8)
        except OSError as error:
            raise snapshot_error(path, f"it cannot be read: {error.strerror or error}") from error
        metadata, tensors = _parse(path, content)
        if metadata.pop("format", None) != FORMAT:
            raise snapshot_error(path, f"it has another format than {FORMAT}; save it again with this version of lily")
        num_layers = int(metadata.pop("num_layers"))
        for name in sorted(fingerprints.keys() | metadata.keys()):
            if fingerprints.get(name) != metadata.get(name):
                raise snapshot_error(
                    path, f"it was saved with another {name}; load it with an engine of the same {name}"
                )
        return StateFile(
            token_ids=tensors["token_ids"].view(np.uint32),
            recurrent_state=tensors["recurrent_state"].view(np.float32),
            conv_state=tensors["conv_state"].view(np.float32),
            kv=[_floats(tensors[f"kv.{layer}"]) for layer in range(num_layers)],
            logits=tensors["logits"].view(np.float32) if "logits" in tensors else None,
            fingerprints=fingerprints,
        )


def _floats(values: NDArray[np.generic]) -> Floats | Halves:
    return values.view(np.float16) if values.dtype == np.float16 else values.view(np.float32)


def snapshot_error(path: Path, reason: str) -> SnapshotError:
    return SnapshotError(f"{path} cannot be used: {reason}", path=str(path), reason=reason)


def _header(tensors: Mapping[str, NDArray[np.generic]], metadata: Mapping[str, str]) -> bytes:
    names = {dtype: name for name, dtype in _DTYPES.items()}
    entries: dict[str, object] = {"__metadata__": {"checksum": _NO_CHECKSUM.decode(), **metadata}}
    offset = 0
    for name, values in tensors.items():
        end = offset + values.nbytes
        entries[name] = {"dtype": names[values.dtype], "shape": list(values.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _parse(path: Path, content: NDArray[np.uint8]) -> tuple[dict[str, str], dict[str, NDArray[np.generic]]]:
    """Metadata without the checksum, and tensors as views, after the checksum has been compared."""
    data = content.data
    begin, end = _CHECKSUM_OFFSET, _CHECKSUM_OFFSET + len(_NO_CHECKSUM)
    if len(data) < end or bytes(data[8:begin]) != _START:
        raise snapshot_error(path, "it is no state file, or its beginning is damaged")
    digest = hashlib.sha256(data[:begin])
    digest.update(_NO_CHECKSUM)
    digest.update(data[end:])
    if digest.hexdigest().encode() != bytes(data[begin:end]):
        raise snapshot_error(path, "its checksum is wrong: it was damaged or cut off")
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(bytes(data[8 : 8 + length]))
    metadata = header.pop("__metadata__")
    del metadata["checksum"]
    tensors = {
        name: content[8 + length :][slice(*entry["data_offsets"])].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
    }
    return metadata, tensors


def _sync_folder(folder: Path) -> None:
    """Make a rename last beyond a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
