"""State of a timeline as one file: safetensors that any reader opens, with a checksum over every byte.

Layout: the header's metadata starts with "checksum", the SHA-256 of the whole file with that text replaced by zeros.
So nothing in a file is believed, not even its header, before all of it is known to be as it was written.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import stat
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
_MAX_HEADER_BYTES: Final = 1 << 20
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

    @property
    def num_bytes(self) -> int:
        """Of all tensors."""
        return sum(values.nbytes for values in self.tensors().values())

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
        """Write the file as a whole or not at all: to a temporary name, onto the disk, then renamed.

        Raises OSError, with the path also where the system names none, as on a full disk.
        """
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
        except OSError as error:
            if error.filename is None:
                error.filename = str(path)
            raise
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        _sync_folder(path.parent)

    @staticmethod
    def read(path: Path, fingerprints: Mapping[str, str]) -> StateFile:
        """Read a file that must have these fingerprints. Raises SnapshotError for any damage or difference."""
        try:
            content = _content(path)
        except SnapshotError:
            raise
        except OSError as error:
            raise snapshot_error(path, f"it cannot be read: {error.strerror or error}") from error
        except ValueError as error:  # of the path: a NUL character, or one that no file name can hold
            raise snapshot_error(path, f"it cannot be read: no file can have this name: {error}") from error
        except MemoryError as error:
            raise snapshot_error(path, "it does not fit into memory") from error
        _check(path, content)
        try:
            metadata, tensors = _parse(content)
            if metadata.pop("format", None) != FORMAT:
                raise snapshot_error(
                    path, f"it has another format than {FORMAT}; save it again with this version of lily"
                )
            file = _state(metadata, int(metadata.pop("num_layers")), tensors)
        except SnapshotError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise snapshot_error(path, f"its checksum is right, but lily did not write it: {error}") from error
        for name in sorted(fingerprints.keys() | metadata.keys()):
            if fingerprints.get(name) != metadata.get(name):
                raise snapshot_error(
                    path, f"it was saved with another {name}; load it with an engine of the same {name}"
                )
        return file


def _state(metadata: Mapping[str, str], num_layers: int, tensors: Mapping[str, NDArray[np.generic]]) -> StateFile:
    """Raises ValueError or KeyError for what no state is; whether it is one of this model, `load_state` sees."""

    def tensor(name: str, dimensions: int, *dtypes: type[np.generic]) -> NDArray[Any]:
        values = tensors[name]
        if values.ndim != dimensions or values.dtype not in dtypes:
            raise ValueError(f"{name} is {values.dtype} with {values.ndim} dimensions")
        return values

    file = StateFile(
        token_ids=tensor("token_ids", 1, np.uint32),
        recurrent_state=tensor("recurrent_state", 4, np.float32),
        conv_state=tensor("conv_state", 3, np.float32),
        kv=[tensor(f"kv.{layer}", 4, np.float32, np.float16) for layer in range(num_layers)],
        logits=tensor("logits", 1, np.float32) if "logits" in tensors else None,
        fingerprints=metadata,
    )
    if not len(file.token_ids) or any(values.shape[2] != len(file.token_ids) for values in file.kv):
        raise ValueError("tokens and state differ in length")
    if tensors.keys() != file.tensors().keys():
        raise ValueError(f"it holds {', '.join(sorted(tensors.keys() - file.tensors().keys()))}")
    return file


def _content(path: Path) -> NDArray[np.uint8]:
    """All bytes, once the header says that they are so many. Raises SnapshotError, OSError, MemoryError."""
    with open(path, "rb", opener=_open) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise snapshot_error(path, "it cannot be read: it is no regular file")
        start = file.read(8 + _MAX_HEADER_BYTES)
        try:
            (length,) = struct.unpack("<Q", start[:8])
            header = json.loads(start[8 : 8 + length])
            end = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
        except (AttributeError, LookupError, TypeError, ValueError, RecursionError, struct.error) as error:
            raise snapshot_error(path, "it is no state file, or its beginning is damaged") from error
        if 8 + length + end != status.st_size:
            raise snapshot_error(
                path, f"it was damaged or cut off: it has {status.st_size} bytes, its header says {8 + length + end}"
            )
        file.seek(0)
        return np.fromfile(file, np.uint8)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # or a pipe would wait for a writer


def target(path: Path) -> Path:
    """The file to write for `path`: where it is a link, the one that the link stands for.

    Raises OSError for where no file can be written, and where one would take the place of something else.
    """
    try:
        os.lstat(path)
    except ValueError as error:
        raise OSError(errno.EINVAL, f"no file can have this name ({error})", str(path)) from error
    except OSError:
        pass  # no such file yet; the checks below say what else is wrong
    if path.is_symlink():
        path = Path(os.path.realpath(path))
    if path.is_symlink():
        raise OSError(errno.ELOOP, "a session is saved to a file, but this link leads to itself", str(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a session is saved to a file, but this is a folder", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "a session is saved to a file, and this is none", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder to save a session to", str(path.parent))
    return path


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


def _check(path: Path, content: NDArray[np.uint8]) -> None:
    """Raises SnapshotError unless every byte is as it was written."""
    data = content.data
    begin, end = _CHECKSUM_OFFSET, _CHECKSUM_OFFSET + len(_NO_CHECKSUM)
    if len(data) < end or bytes(data[8:begin]) != _START:
        raise snapshot_error(path, "it is no state file, or its beginning is damaged")
    digest = hashlib.sha256(data[:begin])
    digest.update(_NO_CHECKSUM)
    digest.update(data[end:])
    if digest.hexdigest().encode() != bytes(data[begin:end]):
        raise snapshot_error(path, "its checksum is wrong: it was damaged or cut off")


def _parse(content: NDArray[np.uint8]) -> tuple[dict[str, str], dict[str, NDArray[np.generic]]]:
    """Metadata without the checksum, and tensors as views."""
    data = content.data
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
