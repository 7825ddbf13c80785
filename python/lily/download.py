"""Models from the Hugging Face Hub into its local cache: only the files that lily reads, resumed, and verified."""

from __future__ import annotations

import hashlib
import http.client
import logging
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from .config import load_config
from .errors import CheckpointError
from .hub import PACKAGED
from .memory import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from huggingface_hub.hf_api import ModelInfo

# All that the engine reads of a checkpoint folder.
WANTED: Final = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    "*.safetensors", "*.safetensors.index.json",
)  # fmt: skip
PARTIAL: Final = ".lily-partial"  # end of the names of files that are not complete yet
_CHUNK_BYTES: Final = 1 << 20
_TIMEOUT_SECONDS: Final = 20.0
_FILES_AT_ONCE: Final = 4
_TRIES: Final = 5  # in a row without a new byte

_log: Final = logging.getLogger("lily")
OnBytes = Callable[[int], object]


class DownloadError(CheckpointError):
    """Files could not be fetched: no network, no such model, no room, or content that is not what the hub announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file of a model: its size and, as the hub names it, the SHA-256 of large files or the git id of small ones."""

    name: str
    num_bytes: int
    sha256: str | None
    git_id: str | None


class Download:
    """What fetching `repo_id` means, before anything is fetched but the list of files.

    Raises DownloadError if the hub cannot be reached or has no such model, CheckpointError for a model of another kind.
    """

    def __init__(self, repo_id: str, revision: str | None = None) -> None:
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        if repo_id in PACKAGED:
            raise DownloadError(f"{repo_id!r} comes with lily: there is nothing to download", path=repo_id)
        self.repo_id = repo_id
        self.revision = revision or "main"
        with _hub_errors(repo_id, self.revision):
            info = _model_info(repo_id, self.revision)
        self.commit = info.sha or self.revision
        self.files = _wanted_files(repo_id, info)
        self._blobs = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=repo_id, repo_type="model") / "blobs"
        self._stop = threading.Event()
        self._verified: set[str] = set()  # names of files whose content was compared when they came

    def missing(self) -> list[RemoteFile]:
        """The files that are not complete in the local cache."""
        return [file for file in self.files if not self._blob(file).exists()]

    def bytes_left(self, file: RemoteFile) -> int:
        """What is still to be fetched of a file."""
        return file.num_bytes - min(self._size(self._partial(file)), file.num_bytes)

    def check_model(self) -> None:
        """Fetch config.json and the tokenizer's settings, and refuse a model that lily does not run."""
        small = [file.name for file in self.files if file.sha256 is None]
        load_config(self._snapshot(small))

    def fetch(self, on_bytes: OnBytes) -> Path:
        """Fetch what is missing and return the folder. on_bytes: called with each number of new bytes, in any thread.

        What a broken download left is continued. Raises DownloadError; everything complete so far is kept.
        """
        left = sum(map(self.bytes_left, self.missing()))
        self._blobs.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._blobs).free
        if left > free:
            raise self._error(
                f"{format_bytes(left)} are to be fetched, but {self._blobs} has {format_bytes(free)} free; "
                "make room, or set HF_HOME to a folder on another disk"
            )
        large = [file for file in self.missing() if file.sha256 is not None]
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
            futures = [pool.submit(self._fetch_large, file, on_bytes) for file in large]
            try:
                for future in futures:
                    future.result()
            except BaseException:
                self._stop.set()
                raise
        return self._snapshot([file.name for file in self.files])

    def verify(self, folder: Path, on_bytes: OnBytes) -> None:
        """Compare every file with the hub's digests. A damaged one is removed and named in a DownloadError."""
        for file in self.files:
            path = folder / file.name
            if file.name in self._verified:
                on_bytes(file.num_bytes)
            elif not _is_sound(path, file, on_bytes):
                blob = path.resolve()
                path.unlink(missing_ok=True)
                blob.unlink(missing_ok=True)
                raise self._error(f"{file.name} was damaged and has been removed; run the same command again")

    def _fetch_large(self, file: RemoteFile, on_bytes: OnBytes) -> None:
        partial = self._partial(file)
        failures = 0
        while (done := self._size(partial)) < file.num_bytes:
            try:
                self._append(file, partial, done, on_bytes)
            except (OSError, http.client.HTTPException) as error:
                if self._stop.is_set():
                    return
                failures = 0 if self._size(partial) > done else failures + 1
                if failures == _TRIES or (isinstance(error, urllib.error.HTTPError) and error.code < 500):
                    raise self._error(
                        f"{file.name}: the connection failed after {format_bytes(self._size(partial))} of "
                        f"{format_bytes(file.num_bytes)} ({error}); run the same command again, it goes on from there"
                    ) from error
                _log.info("%s: %s; going on after %d bytes", file.name, error, self._size(partial))
                time.sleep(min(failures, 4) / 2)
            if self._stop.is_set():
                return
        if not _is_sound(partial, file, lambda num_bytes: None):
            partial.unlink()
            raise self._error(f"{file.name} came with other content than announced; run the same command again")
        partial.replace(self._blob(file))
        self._verified.add(file.name)

    def _append(self, file: RemoteFile, partial: Path, done: int, on_bytes: OnBytes) -> None:
        request = self._request(file)
        if done:
            request.add_header("Range", f"bytes={done}-")
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:
            if done and answer.status != 206:  # the server sends all of it again
                on_bytes(-done)
                done = 0
            with partial.open("r+b" if done else "wb") as out:
                out.seek(done)
                while not self._stop.is_set() and (chunk := answer.read(_CHUNK_BYTES)):
                    out.write(chunk)
                    on_bytes(len(chunk))
        if not self._stop.is_set() and self._size(partial) < file.num_bytes:
            raise ConnectionError("it ended early")

    def _request(self, file: RemoteFile) -> urllib.request.Request:
        """Of the place where the content lies; the hub's token goes to the hub alone."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        url = hf_hub_url(self.repo_id, file.name, revision=self.commit)
        with _hub_errors(self.repo_id, self.revision):
            location = get_hf_file_metadata(url).location
        request = urllib.request.Request(location)
        for name, value in build_hf_headers().items():
            if name.lower() != "authorization" or urlsplit(location).netloc == urlsplit(url).netloc:
                request.add_header(name, value)
        request.add_header("Accept-Encoding", "identity")
        return request

    def _snapshot(self, names: Sequence[str]) -> Path:
        """Let the library fetch the small files, and make the cache's folder of links to all `names`."""
        from huggingface_hub import snapshot_download

        with _hub_errors(self.repo_id, self.revision), _no_bars():
            return Path(snapshot_download(self.repo_id, revision=self.revision, allow_patterns=list(names)))

    def _blob(self, file: RemoteFile) -> Path:
        return self._blobs / str(file.sha256 or file.git_id)

    def _partial(self, file: RemoteFile) -> Path:
        return self._blobs / (str(file.sha256 or file.git_id) + PARTIAL)

    @staticmethod
    def _size(path: Path) -> int:
        return path.stat().st_size if path.exists() else 0

    def _error(self, message: str) -> DownloadError:
        return DownloadError(message, path=self.repo_id)


def _model_info(repo_id: str, revision: str) -> ModelInfo:
    from huggingface_hub import HfApi

    return HfApi().model_info(repo_id, revision=revision, files_metadata=True, timeout=_TIMEOUT_SECONDS)


def _wanted_files(repo_id: str, info: ModelInfo) -> list[RemoteFile]:
    siblings = info.siblings or []
    files = [
        RemoteFile(
            name=sibling.rfilename,
            num_bytes=sibling.size or 0,
            sha256=sibling.lfs.sha256 if sibling.lfs is not None else None,
            git_id=sibling.blob_id,
        )
        for sibling in siblings
        if any(fnmatch(sibling.rfilename, pattern) for pattern in WANTED) and "/" not in sibling.rfilename
    ]
    names = {file.name for file in files}
    needed = [name for name in ("config.json", "tokenizer.json") if name not in names]
    if not any(name.endswith(".safetensors") for name in names):
        needed.append("*.safetensors")
    if needed:
        others = ", ".join(sorted(sibling.rfilename for sibling in siblings)[:8]) or "nothing"
        raise DownloadError(
            f"{repo_id} has no {' and no '.join(needed)}, but {others}; lily reads models in MLX's 4-bit or 8-bit "
            "form, such as those of mlx-community",
            path=repo_id,
        )
    return files


def _is_sound(path: Path, file: RemoteFile, on_bytes: OnBytes) -> bool:
    if not path.exists() or path.stat().st_size != file.num_bytes:
        return False
    # A small file's id is that of git: SHA-1 over a header with its length and its content.
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(f"blob {file.num_bytes}\0".encode())
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
            on_bytes(len(chunk))
    return digest.hexdigest() == (file.sha256 or file.git_id)


@contextmanager
def _hub_errors(repo_id: str, revision: str) -> Iterator[None]:
    """The library's errors as ours, with what to do."""
    from huggingface_hub import constants, errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise DownloadError(
            f"{repo_id} is gated: accept its terms at {constants.ENDPOINT}/{repo_id}, and set HF_TOKEN or run "
            "'hf auth login'",
            path=repo_id,
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise DownloadError(
            f"{constants.ENDPOINT} has no model {repo_id!r}, or it is private: set HF_TOKEN or run 'hf auth login'",
            path=repo_id,
        ) from error
    except errors.HFValidationError as error:
        raise DownloadError(f"{repo_id!r} is no Hugging Face id (org/name): {error}", path=repo_id) from error
    except errors.RevisionNotFoundError as error:
        raise DownloadError(f"{repo_id} has no revision {revision!r}", path=repo_id) from error
    except errors.OfflineModeIsEnabled as error:
        raise DownloadError(f"{repo_id} cannot be fetched: HF_HUB_OFFLINE is set; unset it", path=repo_id) from error
    except CheckpointError:
        raise
    except Exception as error:  # of the HTTP library, which differs between versions of huggingface-hub
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DownloadError(
            f"{constants.ENDPOINT} cannot be reached or does not answer as a hub ({cause}); check the network, "
            "or copy the model's folder from another machine and give its path",
            path=repo_id,
        ) from error


@contextmanager
def _no_bars() -> Iterator[None]:
    from huggingface_hub import utils

    were_on = not utils.are_progress_bars_disabled()  # type: ignore[attr-defined]
    utils.disable_progress_bars()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if were_on:
            utils.enable_progress_bars()  # type: ignore[attr-defined]
