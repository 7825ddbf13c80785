"""A local server that speaks the part of the Hugging Face Hub's protocol that a download needs."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import unquote, urlsplit

COMMIT = "a" * 40


class HubServer:
    """Serves one repository, `repo_id` at the revision main.

    large: names of files that the hub keeps as large files, with their SHA-256; the content of these comes from another
    host name than the list, as from a content network. cut_after: large files end after that many bytes, `cuts` times.
    """

    def __init__(self, repo_id: str, files: Mapping[str, bytes], large: frozenset[str]) -> None:
        self.repo_id = repo_id
        self.files = dict(files)
        self.large = large
        self.cut_after: int | None = None
        self.cuts = 0
        self.ignores_ranges = False
        self.is_gated = False
        self.requests: list[tuple[str, str, str | None, str | None]] = []  # method, path, Range, Authorization
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub._answer(self)

            def do_GET(self) -> None:
                hub._answer(self)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = unquote(urlsplit(handler.path).path)
        self.requests.append((handler.command, path, handler.headers["Range"], handler.headers["Authorization"]))
        if re.fullmatch(rf"/api/models/{self.repo_id}(/revision/(main|{COMMIT}))?", path):
            if self.is_gated:
                return self._send(handler, 403, b"", {"X-Error-Code": "GatedRepo"})
            return self._send(handler, 200, json.dumps(self._info()).encode(), {"Content-Type": "application/json"})
        if match := re.fullmatch(rf"/api/models/{self.repo_id}/revision/(.*)", path):
            return self._send(handler, 404, b"", {"X-Error-Code": "RevisionNotFound"})
        if match := re.fullmatch(rf"/api/models/{self.repo_id}/tree/(main|{COMMIT})", path):
            tree = [self._entry(name) for name in self.files]
            return self._send(handler, 200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
        if match := re.fullmatch(rf"/{self.repo_id}/resolve/(?:main|{COMMIT})/(.+)", path):
            return self._resolve(handler, match[1])
        if match := re.fullmatch("/content/(.+)", path):
            return self._content(handler, self.files[match[1]])
        return self._send(handler, 404, b"", {"X-Error-Code": "RepoNotFound"})

    def _info(self) -> dict[str, object]:
        return {"id": self.repo_id, "sha": COMMIT, "siblings": [self._sibling(name) for name in self.files]}

    def _sibling(self, name: str) -> dict[str, object]:
        content = self.files[name]
        sibling: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": git_id(content)}
        if name in self.large:
            sibling["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        return sibling

    def _entry(self, name: str) -> dict[str, object]:
        content = self.files[name]
        entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": git_id(content)}
        if name in self.large:
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        return entry

    def _resolve(self, handler: BaseHTTPRequestHandler, name: str) -> None:
        if name not in self.files:
            return self._send(handler, 404, b"", {"X-Error-Code": "EntryNotFound"})
        content = self.files[name]
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{git_id(content)}"'}
        if name not in self.large:
            return self._content(handler, content, headers)
        port = self._server.server_port
        headers |= {
            "X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Linked-Size": str(len(content)),
            "Location": f"http://localhost:{port}/content/{name}",
        }
        return self._send(handler, 302, b"", headers)

    def _content(
        self, handler: BaseHTTPRequestHandler, content: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        start = 0
        if (wanted := handler.headers["Range"]) and not self.ignores_ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        status = 206 if start else 200
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        if handler.command == "HEAD":
            return
        body = content[start:]
        if headers is None and self.cut_after is not None and self.cuts > 0:
            self.cuts -= 1
            body = body[: self.cut_after]
            handler.close_connection = True
        handler.wfile.write(body)

    @staticmethod
    def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
