"""The files in examples/ run as they stand on lily-nano."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CLOUD_")}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment | variables,
    )


def test_the_demo() -> None:
    done = run("demo.py")
    assert done.returncode == 0, done.stderr
    assert "I am lily-nano, a very small language model made to test the lily engine." in done.stdout
    assert '"owner": "Fatima Garcia"' in done.stdout and "tok/s" in done.stdout


def test_documents_to_json() -> None:
    done = run("extract.py")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["file"] for line in lines] == sorted(path.name for path in (EXAMPLES / "documents").iterdir())
    assert lines[0] == {"file": "BUG-2275.txt", "owner": "Hana Patel", "priority": "high", "status": "waiting"}
    assert all(line.keys() == {"file", "owner", "priority", "status"} for line in lines)


def test_a_document_that_fails_does_not_end_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("word " * 5000)
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\xff")
    (tmp_path / "c.txt").write_text("Ticket: c\nOwner: Hana Patel\nPriority: low\nStatus: closed\n")
    done = run("extract.py", str(tmp_path))
    assert done.returncode == 1 and json.loads(done.stdout)["file"] == "c.txt"
    assert "a.txt: a prompt of" in done.stderr and "b.txt: 'utf-8' codec" in done.stderr


class Cloud(BaseHTTPRequestHandler):
    """Answers as an OpenAI-compatible server, and remembers what it was asked."""

    asked: list[tuple[str, str, dict[str, object]]] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers["Authorization"], body))
        answer = json.dumps({"choices": [{"message": {"role": "assistant", "content": "The Peace of Westphalia."}}]})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def cloud() -> Iterator[str]:
    Cloud.asked.clear()
    server = HTTPServer(("127.0.0.1", 0), Cloud)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_router_asks_the_cloud_only_what_it_must(cloud: str) -> None:
    questions = ["Who are you?", "Which treaty ended the Thirty Years' War?", "33 / 11 = ?"]
    done = run("router.py", *questions, CLOUD_URL=cloud, CLOUD_MODEL="large", CLOUD_KEY="secret", NO_PROXY="127.0.0.1")
    assert done.returncode == 0, done.stderr
    routes = [line.split()[0] for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert routes == ["local", "cloud", "local"] and "The Peace of Westphalia." in done.stdout
    ((path, key, body),) = Cloud.asked
    assert path == "/v1/chat/completions" and key == "Bearer secret"
    assert body == {"model": "large", "messages": [{"role": "user", "content": questions[1]}]}


def test_the_router_without_a_cloud_says_what_would_leave() -> None:
    done = run("router.py")
    assert done.returncode == 0 and "this question would go to the cloud" in done.stdout
