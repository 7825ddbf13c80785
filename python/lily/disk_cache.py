"""Snapshots as files in a folder that several processes share without locks.

A file appears whole, by renaming, and is never changed. Names are hints: what a file holds is compared token by token.
A damaged or foreign file is a miss. The file used longest ago leaves first.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .cache_folder import STATE_NAME, cached_prompts
from .errors import SnapshotError
from .state_file import TEMPORARY, StateFile, snapshot_error

MIN_GAIN: Final = 64  # tokens that a file must save: reading one costs as much as computing some
MAX_BYTES: Final = 64 << 30
_STALE_SECONDS: Final = 3600.0
_MAX_WAITING_BYTES: Final = 256 << 20  # of copies of snapshots on their way to the disk; one may be larger

_log: Final = logging.getLogger("lily")
TokenIds = NDArray[np.uint32]
_File = tuple[str, int, int, int]  # name, inode, bytes, time of the last change
State = tuple[NDArray[np.float32], NDArray[np.float32], list[NDArray[np.float32] | NDArray[np.float16]]]


class DiskCache:
    """The state files of one model in a folder that models share. `find` and `store` are called by one thread; a second
    one writes. limit_bytes: of all models' files; None: a quarter of what the disk could give, at most MAX_BYTES.

    Raises OSError if the folder cannot be made or written to, ValueError if no folder can have such a name.
    """

    def __init__(self, cache_dir: Path, fingerprints: Mapping[str, str], *, limit_bytes: int | None = None) -> None:
        key = hashlib.sha256(repr(sorted(fingerprints.items())).encode()).hexdigest()[:16]
        self._cache_dir, self._folder = cache_dir, cache_dir / key
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self._folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except ValueError as error:  # a zero byte
            raise ValueError(f"cache_dir {str(cache_dir)!r} cannot be a folder: {error}") from None
        except OSError as error:
            reason = f"{error.strerror}: cache_dir must be a folder that this process can write to; give another"
            raise OSError(error.errno, reason, str(cache_dir)) from error
        self._fingerprints = fingerprints
        self._limit = limit_bytes
        self._damaged: set[_File] = set()  # found unusable: not read again
        self._queue: Queue[StateFile | None] = Queue()
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._write_all, name="lily-disk-cache", daemon=True)
        self._thread.start()

    def find(self, prompt: TokenIds, *, longer_than: int) -> StateFile | None:
        """The file with the longest beginning of `prompt` [n], below n, if it saves MIN_GAIN tokens and is sound."""
        by_length: dict[int, set[str]] = {}
        for name in self._names():
            length = int(name[:8])
            if longer_than + MIN_GAIN <= length < len(prompt):
                by_length.setdefault(length, set()).add(name)
        wanted = _names_of(prompt, sorted(by_length))
        for length in sorted(by_length, reverse=True):
            if wanted[length] in by_length[length] and (found := self._read(wanted[length], prompt[:length])):
                return found
        return None

    def store(self, token_ids: TokenIds, num_bytes: int, read_state: Callable[[], State]) -> None:
        """Write a snapshot of num_bytes in the background; skipped when it is there already or the disk is too slow."""
        (name,) = _names_of(token_ids, [len(token_ids)]).values()
        if len(token_ids) < MIN_GAIN or not self._has_room(num_bytes) or name in self._names():
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
        with self._lock:
            self._waiting_bytes += file.num_bytes
        self._queue.put(file)

    def refuse(self, file: StateFile, reason: str) -> None:
        """Do not offer this file again, which `find` gave."""
        (name,) = _names_of(file.token_ids, [len(file.token_ids)]).values()
        _log.warning("prefix cache: %s", snapshot_error(self._folder / name, reason))
        with suppress(OSError):
            self._damaged.add(_identity(name, (self._folder / name).stat()))

    def _has_room(self, num_bytes: int) -> bool:
        with self._lock:
            return self._waiting_bytes == 0 or self._waiting_bytes + num_bytes <= _MAX_WAITING_BYTES

    def flush(self) -> None:
        """Wait until everything stored so far is written."""
        self._queue.join()

    def close(self) -> None:
        """Write what waits, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _names(self) -> Iterator[str]:
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    if not STATE_NAME.fullmatch(entry.name) or not entry.is_file():
                        continue
                    if not self._damaged or _identity(entry.name, entry.stat()) not in self._damaged:
                        yield entry.name

    def _read(self, name: str, token_ids: TokenIds) -> StateFile | None:
        path = self._folder / name
        try:
            found = _identity(name, path.stat())
        except OSError:
            return None  # another process removed it just now
        try:
            file = StateFile.read(path, self._fingerprints)
        except SnapshotError as error:
            if path.exists():
                _log.warning("prefix cache: %s", error)
                self._damaged.add(found)
            return None
        if not np.array_equal(file.token_ids, token_ids):
            self._damaged.add(found)
            return None
        with suppress(OSError):
            os.utime(path)
        return file

    def _write_all(self) -> None:
        while (file := self._queue.get()) is not None:
            (name,) = _names_of(file.token_ids, [len(file.token_ids)]).values()
            try:
                self._folder.mkdir(parents=True, exist_ok=True)  # somebody may have cleared the folder
                try:
                    file.write(self._folder / name)
                finally:  # on a full disk the share of this cache is smaller, and what is too much of it leaves
                    self._make_room(self._folder / name)
            except Exception as error:  # the thread must live: others wait for it
                _log.warning("prefix cache: a snapshot could not be written to %s: %s", self._folder, error)
            finally:
                with self._lock:
                    self._waiting_bytes -= file.num_bytes
                del file
                self._queue.task_done()
        self._queue.task_done()

    def _make_room(self, newest: Path) -> None:
        """Remove what crashed writers left behind, and the files used longest ago until the rest fits."""
        for path in self._folder.glob(f"*{TEMPORARY}"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                    path.unlink()
        prompts = list(cached_prompts(self._cache_dir))
        total = sum(prompt.num_bytes for prompt in prompts)
        limit = self._limit
        if limit is None:
            limit = min(MAX_BYTES, (shutil.disk_usage(self._folder).free + total) // 4)
        for prompt in sorted(prompts, key=lambda prompt: prompt.last_used):
            if total <= limit:
                return
            if prompt.path != newest:
                with suppress(OSError):
                    prompt.path.unlink(missing_ok=True)
                    total -= prompt.num_bytes


def _identity(name: str, status: os.stat_result) -> _File:
    return name, status.st_ino, status.st_size, status.st_mtime_ns


def _names_of(token_ids: TokenIds, lengths: list[int]) -> dict[int, str]:
    """File names of the beginnings of these ascending lengths."""
    digest = hashlib.sha256()
    names, done = {}, 0
    for length in lengths:
        digest.update(np.ascontiguousarray(token_ids[done:length], dtype="<u4").tobytes())
        done = length
        names[length] = f"{length:08d}-{digest.hexdigest()[:32]}.lily"
    return names
