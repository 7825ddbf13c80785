"""From the first answer while the model loads to the last one while the server stops."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from lily import CheckpointError, DeviceError, Engine
from lily.server import ServerOptions, process, serve
from tests.gated import wait_until

from .live import ANSWER, ASK, Live, nano, saying, serving

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"messages": ASK, "temperature": 0, "reasoning_effort": "none"}


def test_the_socket_answers_while_the_model_loads() -> None:
    gate = threading.Event()

    def slow(report: Callable[[int, int], None]) -> Engine:
        report(3, 10)
        gate.wait()
        return nano()(report)

    live = Live(slow)
    try:
        assert live.client.get("/health").json() == {"status": "ok"}
        for response in (live.client.get("/ready"), live.post(CHAT, **BODY), live.post("/tokenize", content="x")):
            assert response.status_code == 503 and response.headers["retry-after"] == "2"
            assert response.json()["error"]["message"] == "Loading model"
        status = live.client.get("/status").json()
        assert (status["status"], status["loaded_bytes"], status["total_bytes"]) == ("loading", 3, 10)
        assert live.client.get("/v1/models").json()["data"][0]["max_context"] is None
        assert live.client.get("/metrics").status_code == 200
        gate.set()
        live.wait_until_ready()
        assert live.client.get("/ready").json()["max_context"] == 2048
        assert live.post(CHAT, **BODY).json()["choices"][0]["message"]["content"] == ANSWER
    finally:
        gate.set()
        live.stop()


def test_stopping_while_the_model_loads_ends_the_loading() -> None:
    reports = 0

    def endless(report: Callable[[int, int], None]) -> Engine:
        nonlocal reports
        while True:
            reports += 1
            report(reports, 10**9)
            time.sleep(0.01)

    live = Live(endless)
    live.wait_until(lambda: reports > 1)
    live.stop()


def test_a_model_that_cannot_be_loaded_ends_the_server() -> None:
    def broken(report: Callable[[int, int], None]) -> Engine:
        raise CheckpointError("config.json is damaged")

    with pytest.raises(CheckpointError, match="damaged"):
        serve(broken, ServerOptions(served_model_names=("x",), port=0))


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(live: Live) -> None:
    with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1, port {live.port}: .* --port"):
        serve(lambda report: pytest.fail("loaded"), ServerOptions(served_model_names=("x",), port=live.port))


@pytest.mark.parametrize(
    ("host", "words"),
    [("nosuch.invalid", "cannot listen on nosuch.invalid: .* --host"), ("192.0.2.1", "port 0: .* --host")],
)
def test_an_address_that_is_not_here(host: str, words: str) -> None:
    with pytest.raises(OSError, match=words):
        process.bind(host, 0)


@pytest.mark.parametrize(("host", "reached_at"), [("localhost", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")])
def test_hosts(host: str, reached_at: str) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with process.bind(host, 0) as listener:
        socket.create_connection((reached_at, listener.getsockname()[1])).close()


def has_ipv6() -> bool:
    try:
        process.bind("::1", 0).close()
    except OSError:
        return False
    return True


def test_a_full_queue_is_refused_with_a_time_to_come_back() -> None:
    with serving(max_queue=1) as live:
        room = live.engine.runtime.max_timelines + 1
        results: list[httpx.Response] = []

        def ask() -> None:
            results.append(httpx.post(live.url + CHAT, json=BODY | {"max_tokens": 2}, timeout=300))

        threads = [threading.Thread(target=ask) for _ in range(room)]
        with live.device_held():
            for thread in threads:
                thread.start()
            live.wait_until(lambda: len(live.service.admission) == room)
            assert live.metric("lily_num_requests_waiting") == room
            for route, error in (("/v1/chat/completions", "unavailable_error"), ("/v1/messages", "overloaded_error")):
                refused = live.post(route, messages=ASK, max_tokens=1)
                assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
                assert refused.json()["error"]["type"] == error and "--max-queue" in refused.text
            assert live.client.get("/health").status_code == 200
        for thread in threads:
            thread.join()
        assert [result.json()["choices"][0]["message"]["content"] for result in results] == ["I am"] * room
        assert live.metric("lily_request_error_total", status="503") == 2
        assert live.metric("lily_request_success_total") == room


def test_requests_finish_while_the_server_stops() -> None:
    with serving() as live, live.client.stream("POST", CHAT, json=BODY | {"stream": True}) as response:
        lines = response.iter_lines()
        next(lines)
        live.server.should_exit = True
        text = "".join(
            json.loads(line[6:])["choices"][0]["delta"].get("content", "")
            for line in lines
            if line.startswith("data: {")
        )
        assert text == ANSWER


def test_requests_that_take_longer_than_the_deadline_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SHUTDOWN_SECONDS", 0.5)
    with serving() as live:
        body = BODY | {"stream": True, "ignore_eos": True, "max_tokens": 1900}
        with live.device_held(), live.client.stream("POST", CHAT, json=body) as response:
            live.server.should_exit = True
            live.wait_until(lambda: live.service.admission.stopping)
            text = "".join(response.iter_text())
        assert "the server is shutting down" in text and "[DONE]" not in text


def test_a_device_that_is_lost_ends_the_readiness() -> None:
    with serving() as live:
        error = DeviceError("the device is gone", device="cpu", kernel="router", code="1")
        with saying(live, [5, error]):
            assert live.post(CHAT, **BODY).status_code == 500
        assert live.client.get("/ready").status_code == 200  # the engine survives that one
        error = DeviceError("the device is gone", device="cpu", kernel="router", code="1", fatal=True)
        with saying(live, [5, error]):
            assert "the device is gone" in live.post(CHAT, **BODY).json()["error"]["message"]
        ready = live.client.get("/ready")
        assert ready.status_code == 503 and "the device is gone" in ready.text


def test_options_are_checked() -> None:
    for wrong in (
        {"served_model_names": ()},
        {"port": 70000},
        {"api_key": ""},
        {"api_key": "a b\n"},
        {"max_queue": -1},
        {"ping_seconds": 0},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ServerOptions(**{"served_model_names": ("x",)} | wrong)  # type: ignore[arg-type]


@contextmanager
def command(*flags: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`lily serve` as a process, and its address."""
    child = subprocess.Popen(
        [sys.executable, "-m", "lily", "serve", "--port", "0", "--max-context", "1024", *flags],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        assert child.stderr is not None
        lines = iter(child.stderr.readline, "")
        url = next(match[0] for line in lines if (match := re.search(r"http://127\.0\.0\.1:\d+", line)))
        yield child, url
    finally:
        child.kill()
        child.communicate()


def test_the_command(tmp_path: Any) -> None:
    with command("--served-model-name", "small", "tiny", LILY_API_KEY="secret") as (child, url):
        with httpx.Client(base_url=url, headers={"authorization": "Bearer secret"}, timeout=300) as client:
            wait_until(lambda: client.get("/ready").status_code == 200)
            assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["small", "tiny"]
            reply = client.post(CHAT, json=BODY | {"model": "tiny"}).json()
            assert (reply["model"], reply["choices"][0]["message"]["content"]) == ("tiny", ANSWER)
            assert client.post(CHAT, json=BODY, headers={"authorization": "Bearer wrong"}).status_code == 401
        child.send_signal(signal.SIGINT)
        _, log = child.communicate(timeout=300)
        assert child.returncode == 130
        assert [line.count("finish=stop") for line in log.splitlines() if " 200 " in line] == [1]
    failed = subprocess.run(
        [sys.executable, "-m", "lily", "serve", "--port", "0", "--model", str(tmp_path)], capture_output=True, text=True
    )
    assert failed.returncode == 1 and "config.json" in failed.stderr and "Traceback" not in failed.stderr


def test_a_supervisor_sees_a_clean_end() -> None:
    with command() as (child, url):
        wait_until(lambda: httpx.get(url + "/ready").status_code == 200)
        child.send_signal(signal.SIGTERM)
        _, log = child.communicate(timeout=300)
        assert child.returncode == 0 and log.endswith(": stopped\n")


def test_import_lily_needs_no_extra_and_the_server_names_what_is_missing() -> None:
    code = (
        "import sys\n"
        "sys.modules['msgspec'] = None\n"
        "import lily\n"
        "assert not {'starlette', 'uvicorn', 'prometheus_client'} & set(sys.modules)\n"
        "import lily.server\n"
    )
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    hint = """install them with: pip install ".[server]" in lily's folder"""
    assert failed.stderr.rstrip().endswith(f"(msgspec is missing); {hint}")
    assert "ImportError" in failed.stderr


def test_connections_send_small_writes_at_once() -> None:
    with process.bind("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()) as client:
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert not client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)  # which is what the system gives
