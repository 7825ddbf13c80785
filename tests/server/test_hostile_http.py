"""Connections and requests that no client means well with: an error or an end, and the server lives on."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import pytest

from lily.server import protocol

from .live import ANSWER, ASK, CHAT, Live, serving
from .wire import check_error, connect, post, read_all, send

pytestmark = pytest.mark.usefixtures("nothing_is_left_behind", "the_server_lives_on")

SMUGGLED = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        "transfer-encoding: chunked\r\ncontent-length: 4",
        "content-length: 4\r\ncontent-length: 5",
        "content-length: 4, 5",
        "content-length: +4",
        "content-length: -4",
        "content-length: 4 4",
        "transfer-encoding: chunked, identity",
        "transfer-encoding: xchunked",
        "transfer-encoding: chunked\r\ntransfer-encoding: chunked",
        "transfer-encoding : chunked",
        " folded: header",
        "na me: x",
        "x: a\x00b",
        "host: y",
    ],
)
def test_requests_whose_end_is_ambiguous_are_refused(live: Live, head: str) -> None:
    data = f"POST /tokenize HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n".encode() + b"0\r\n\r\n" + SMUGGLED
    first, *rest = send(live.port, data)
    assert first.status in (400, 501) and b'"error"' in first.body
    assert all(answer.status != 200 for answer in rest)


@pytest.mark.parametrize(
    ("data", "statuses"),
    [
        (b"\r\n" * 10, None),
        (b"GET\r\n\r\n", (400,)),
        (b"GET / HTTP/9.9\r\nhost: x\r\n\r\n", (505,)),
        (b"GET / HTTP/1.1\r\n\r\n", (400,)),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 505)),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", (400,)),
        (bytes(range(256)) * 4 + b"\r\n\r\n", (400,)),
        (b"GET http://example.org/ HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", (404,)),
        (b"GET /%ff%fe%00 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", (404,)),
        (b"GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", (404,)),
        (b"CONNECT example.org:443 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", (404, 405)),
        (b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", (400,)),
        (b"POST /tokenize HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"f" * 30 + b"\r\n", (400,)),
        (b"GET /health HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade, close\r\n\r\n", (200,)),
    ],
)
def test_what_is_no_http(live: Live, data: bytes, statuses: tuple[int, ...] | None) -> None:
    if statuses is None:
        send(live.port, data, count=0)
        return
    (answer,) = send(live.port, data)
    assert answer.status in statuses
    if answer.status != 200:
        check_error(answer.status, answer.body, *statuses)


def test_headers_that_are_too_long(live: Live) -> None:
    (answer,) = send(live.port, b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 100_000 + b"\r\n\r\n")
    check_error(answer.status, answer.body, 431)
    with connect(live.port) as connection, pytest.raises(OSError):  # an endless one
        while True:
            connection.sendall(b"x: y\r\n" * 1000)


def test_pipelined_requests_are_answered_in_order(live: Live) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 1, "temperature": 0}).encode()
    data = post("/v1/completions", body) + post("/nowhere", b"{}") + SMUGGLED
    assert [answer.status for answer in send(live.port, data, count=3)] == [200, 404, 200]


def test_two_hundred_half_open_connections(live: Live) -> None:
    beginnings = [b"", b"POST", b"POST /v1/chat/completions HTTP/1.1\r\n", post(CHAT, b"x" * 50)[:-20]]
    opened = [connect(live.port) for _ in range(200)]
    try:
        for index, connection in enumerate(opened):
            connection.sendall(beginnings[index % len(beginnings)])
        assert live.client.get("/health").status_code == 200
        body = {"messages": ASK, "temperature": 0, "reasoning_effort": "none"}
        assert live.post(CHAT, **body).json()["choices"][0]["message"]["content"] == ANSWER
    finally:
        for connection in opened:
            connection.close()
    live.wait_until(lambda: len(live.server.server_state.connections) <= 2)


def test_clients_that_send_no_request_in_time_are_dropped(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(live.port) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        received = b""
        while not received.endswith(b'"ok"}'):
            received += (piece := connection.recv(1000))
            assert piece, received
        monkeypatch.setattr(protocol, "REQUEST_HEAD_SECONDS", 0.3)  # from the next beginning on
        connection.sendall(b"GET /health HT")
        assert read_all(connection) == b""
    with connect(live.port) as connection:
        with suppress(ConnectionError):  # it may be over already
            connection.sendall(b"GET /health HT")
        assert read_all(connection) == b""


def test_a_body_that_comes_too_slowly_is_refused(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lily.server.body.BODY_SECONDS", 0.3)
    (answer,) = send(live.port, post(CHAT, b"x" * 50)[:-20], count=1)
    check_error(answer.status, answer.body, 408)


def test_a_client_that_reads_nothing_is_dropped_and_its_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "STALL_SECONDS", 0.3)
    body = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True, "logprobs": 20}
    with serving(send_buffer_bytes=4096) as live, connect(live.port) as connection, live.gated() as gate:
        gate.allow(1500)  # more than the buffers take
        connection.sendall(post("/v1/completions", json.dumps(body).encode()))
        live.wait_until(lambda: len(live.service.ledger.recent) == 1)
        assert live.service.ledger.recent[0].status == 499
        gate.open()
        live.wait_until_idle()
        assert gate.num_tokens <= 1501


def test_a_slow_client_gets_its_answer(live: Live) -> None:
    data = post(CHAT, json.dumps({"messages": ASK, "max_tokens": 1}).encode())
    with connect(live.port) as connection:
        for start in range(0, len(data), 20):
            connection.sendall(data[start : start + 20])
            time.sleep(0.01)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
