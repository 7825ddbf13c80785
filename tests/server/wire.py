"""HTTP by hand, for requests that no client would send."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path

import lily

PACKAGE = str(Path(lily.__file__).parent)


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=300)


def read_all(connection: socket.socket) -> bytes:
    """Everything up to the end of the connection, which the server has to close."""
    out = b""
    try:
        while piece := connection.recv(65536):
            out += piece
    except ConnectionError:
        pass
    return out


def answers(data: bytes) -> list[Answer]:
    """The responses in `data`, each with a content-length."""
    out = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        out.append(Answer(int(first.split(" ")[1]), headers, data[:length]))
        data = data[length:]
    return out


def send(port: int, data: bytes, *, count: int | None = None) -> list[Answer]:
    """What a server answers to these bytes: `count` answers, or all until it closes the connection."""
    with connect(port) as connection:
        connection.sendall(data)
        if count is None:
            return answers(read_all(connection))
        received = b""
        while True:
            try:
                found = answers(received)
            except (IndexError, ValueError):  # a head that is not complete
                found = []
            if len(found) >= count and all(len(one.body) == int(one.headers["content-length"]) for one in found):
                return found
            piece = connection.recv(65536)
            assert piece, received
            received += piece


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def check_error(status: int, body: bytes, *expected: int) -> str:
    """An error object, and nothing of the inside in it."""
    assert status in expected, (status, body)
    message: str = json.loads(body)["error"]["message"]
    assert message and "Traceback" not in message and PACKAGE not in message and ".py" not in message
    return message
