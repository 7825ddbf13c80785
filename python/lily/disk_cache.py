"""Snapshots as files in a folder that several processes share without locks.

A file appears whole, by renaming, and is never changed. Names are hints: what a file holds is compared token by token.
A damaged or foreign file is a miss. The file used longest ago leaves first.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Full, Queue
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .errors import SnapshotError
from .state_file import TEMPORARY, StateFile

MIN_GAIN: Final = 64  # tokens that a file must save: reading one costs as much as computing some
MAX_BYTES: Final = 64 << 30
_SUFFIX: Final = ".lily"
_STALE_SECONDS: Final = 3600.0
_MAX_WAITING: Final = 2  # snapshots in memory on their way to the disk

_log: Final = logging.getLogger("lily")
TokenIds = NDArray[np.uint32]
State = tuple[NDArray[np.float32], NDArray[np.float32], list[NDArray[np.float32] | NDArray[np.float16]]]


class DiskCache:
    """A folder of state files of one model. `find` and `store` are called by one thread; a second one writes."""

    def __init__(self, folder: Path, fingerprints: Mapping[str, str], *, limit_bytes: int | None = None) -> None:
        key = hashlib.sha256(repr(sorted(fingerprints.items())).encode()).hexdigest()[:16]
        self._folder = folder / key
        self._folder.mkdir(parents=True, exist_ok=True)
        self._fingerprints = fingerprints
        self._limit = limit_bytes
        self._damaged: set[tuple[str, int]] = set()  # (name, inode) of files found unusable: not read again
        self._queue: Queue[StateFile | None] = Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._write_all, name="lily-disk-cache", daemon=True)
        self._thread.start()

    def find(self, prompt: TokenIds, *, longer_than: int) -> StateFile | None:
        """The file with the longest beginning of `prompt` [n], below n, if it saves MIN_GAIN tokens and is sound."""
        by_length: dict[int, set[str]] = {}
        for name in self._names():
            length = int(name.partition("-")[0])
            if longer_than + MIN_GAIN <= length < len(prompt):
                by_length.setdefault(length, set()).add(name)
        wanted = _names_of(prompt, sorted(by_length))
        for length in sorted(by_length, reverse=True):
            if wanted[length] in by_length[length] and (found := self._read(wanted[length], prompt[:length])):
                return found
        return None

    def store(self, token_ids: TokenIds, read_state: Callable[[], State]) -> None:
        """Write a snapshot in the background; skipped when it is there already or the disk is too slow to keep up."""
        (name,) = _names_of(token_ids, [len(token_ids)]).values()
        if len(token_ids) < MIN_GAIN or self._queue.full() or name in self._names():
            return
        recurrent_state, conv_state, kv = read_state()
        file = StateFile(
            token_ids=token_ids.copy(),
            recurrent_state=recurrent_state,
            conv_state=conv_state,
            kv=kv,
            logits=None,
            fingerprints=self._fingerprints,
        )
        with suppress(Full):
            self._queue.put_nowait(file)

    def flush(self) -> None:
        """Wait until everything stored so far is written."""
        self._queue.join()

    def close(self) -> None:
        """Write what waits, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _names(self) -> list[str]:
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            return [
                entry.name
                for entry in entries
                if entry.name.endswith(_SUFFIX)
                and entry.name.partition("-")[0].isdecimal()
                and (entry.name, entry.inode()) not in self._damaged
            ]
        return []

    def _read(self, name: str, token_ids: TokenIds) -> StateFile | None:
        path = self._folder / name
        try:
            inode = path.stat().st_ino
            file = StateFile.read(path, self._fingerprints)
        except (SnapshotError, OSError) as error:
            if path.exists():
                _log.warning("prefix cache: %s", error)
                self._damaged.add((name, inode))
            return None  # another process may have removed it just now
        if not np.array_equal(file.token_ids, token_ids):
            return None
        with suppress(OSError):
            os.utime(path)
        return file

    def _write_all(self) -> None:
        while (file := self._queue.get()) is not None:
            (name,) = _names_of(file.token_ids, [len(file.token_ids)]).values()
            try:
                file.write(self._folder / name)
                self._make_room(name)
            except OSError as error:
                _log.warning("prefix cache: a snapshot could not be written to %s: %s", self._folder, error)
            finally:
                del file
                self._queue.task_done()
        self._queue.task_done()

    def _make_room(self, newest: str) -> None:
        """Remove the files used longest ago until the rest fits, and what crashed writers left behind."""
        files, total = [], 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    if entry.name.endswith(TEMPORARY) and time.time() - status.st_mtime > _STALE_SECONDS:
                        os.unlink(entry.path)
                    elif entry.name.endswith(_SUFFIX):
                        total += status.st_size
                        if entry.name != newest:
                            files.append((status.st_mtime_ns, status.st_size, entry.path))
        limit = self._limit
        if limit is None:  # a quarter of what the disk could give
            limit = min(MAX_BYTES, (shutil.disk_usage(self._folder).free + total) // 4)
        for _, size, path in sorted(files):
            if total <= limit:
                return
            with suppress(FileNotFoundError):
                os.unlink(path)
            total -= size


def _names_of(token_ids: TokenIds, lengths: list[int]) -> dict[int, str]:
    """File names of the beginnings of these ascending lengths."""
    digest = hashlib.sha256()
    names, done = {}, 0
    for length in lengths:
        digest.update(np.ascontiguousarray(token_ids[done:length], dtype="<u4").tobytes())
        done = length
        names[length] = f"{length:08d}-{digest.hexdigest()[:32]}{_SUFFIX}"
    return names
