"""Arm: what the server adds to the library, per request and per streamed token, over a local connection.

Each request runs twice, one after the other in alternating order: in this process through the library, and through
`lily serve` in a process of its own. A median is of the differences of such pairs, so that a drift meets both alike.
The client writes bytes that are ready and looks for the end of the answer: what a client costs is not of the server.
"""

import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from bench import arm
from lily import ChatChunk, Chunk, Engine, SamplingParams

LISTENING = re.compile(r"listening on http://([\d.]+):(\d+)")
LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n")
QUESTION = [{"role": "user", "content": "Who are you?"}]


@contextmanager
def server(*flags: str) -> Iterator[socket.socket]:
    """A connection to `lily serve` in a process of its own, once it is ready."""
    with tempfile.TemporaryFile() as log:  # a pipe that nobody reads would stop the server when it is full
        child = subprocess.Popen([sys.executable, "-m", "lily", "serve", "--port", "0", *flags], stderr=log)
        try:
            with socket.create_connection(address(child, log)) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ready = b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n"
                while not exchange(connection, ready).startswith(b"HTTP/1.1 200"):
                    time.sleep(0.05)
                yield connection
        finally:
            child.terminate()
            child.wait()


def address(child: subprocess.Popen[bytes], log: BinaryIO) -> tuple[str, int]:
    """Where the server listens, from its log."""
    while True:
        text = os.pread(log.fileno(), 1 << 16, 0).decode()
        if match := LISTENING.search(text):
            return match[1], int(match[2])
        if child.poll() is not None:
            raise RuntimeError(f"lily serve ended with status {child.returncode}: {text}")
        time.sleep(0.01)


def post(path: str, body: object) -> bytes:
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


def exchange(connection: socket.socket, request: bytes) -> bytes:
    """The whole answer to a request, as it came."""
    connection.sendall(request)
    received = b""
    while not is_whole(received):
        piece = connection.recv(1 << 20)
        assert piece, received
        received += piece
    return received


def is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    length = LENGTH.search(head + b"\r\n")
    return body.endswith(b"\r\n0\r\n\r\n") if length is None else len(body) >= int(length[1])


def streamed_text(answer: bytes) -> str:
    """What the chunks of a stream say."""
    choices = [json.loads(data)["choices"][0] for data in re.findall(rb"data: (\{.*\})\n", answer)]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


@dataclass(frozen=True)
class Route:
    """One verb of the library, and the request that does the same."""

    stream: Callable[[SamplingParams], Iterable[Chunk | ChatChunk]]
    path: str
    body: dict[str, Any]

    def request(self, num_tokens: int) -> bytes:
        fields = {"temperature": 0, "ignore_eos": True, "max_tokens": num_tokens, "stream": True}
        return post(self.path, self.body | fields)


@dataclass(frozen=True)
class Pairs:
    """Seconds of requests through the library and through the server, run in pairs."""

    library: Sequence[float]
    server: Sequence[float]

    @property
    def added_seconds(self) -> float:
        return statistics.median(served - own for served, own in zip(self.server, self.library, strict=True))


def measure(route: Route, connection: socket.socket, num_tokens: int, repeats: int) -> tuple[Pairs, list[int], bytes]:
    """Pairs of one kind of request, the tokens of the library and the last answer of the server."""
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=num_tokens)
    request = route.request(num_tokens)
    token_ids: list[int] = []
    answer = b""

    def through_the_library() -> float:
        start = time.perf_counter()
        token_ids[:] = [chunk.token_id for chunk in route.stream(params)]
        return time.perf_counter() - start

    def through_the_server() -> float:
        nonlocal answer
        start = time.perf_counter()
        answer = exchange(connection, request)
        return time.perf_counter() - start

    pairs = Pairs([], [])
    sides = [(through_the_library, pairs.library), (through_the_server, pairs.server)]
    for repeat in range(repeats + 3):
        for side, seconds in sides if repeat % 2 else reversed(sides):
            taken = side()
            if repeat >= 3:  # the first ones fill the prefix caches
                seconds.append(taken)  # type: ignore[attr-defined]
    return pairs, token_ids, answer


def main() -> None:
    parser = arm.options(__doc__ or "")
    parser.add_argument("--tokens", type=int, default=256, help="of a stream (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=200, help="pairs of one token (default: %(default)s)")
    parser.add_argument("--streams", type=int, default=40, help="pairs of --tokens tokens (default: %(default)s)")
    options = parser.parse_args()

    length = options.context + options.tokens
    flags = ("--model", options.model, "--device", options.device, "--max-context", str(length))
    all_ids: list[int] = []
    metrics: dict[str, float] = {}
    with (
        Engine(options.model, device=options.device, max_context=length, progress=False) as engine,
        server(*flags) as connection,
    ):
        prompt = arm.prompt(options.context, engine.config.vocab_size)
        completion = Route(lambda params: engine.stream(prompt, params), "/v1/completions", {"prompt": prompt})
        chat = Route(
            lambda params: engine.stream_chat(QUESTION, params, reasoning=False),  # type: ignore[arg-type]
            "/v1/chat/completions",
            {"messages": QUESTION, "reasoning_effort": "none"},
        )
        for name, route in (("completion", completion), ("chat", chat)):
            one, one_ids, _ = measure(route, connection, 1, options.requests)
            many, many_ids, answer = measure(route, connection, options.tokens, options.streams)
            said = "".join(
                chunk.text if isinstance(chunk, Chunk) else chunk.content
                for chunk in route.stream(SamplingParams(temperature=0, ignore_eos=True, max_tokens=options.tokens))
            )
            assert streamed_text(answer) == said, answer
            all_ids += one_ids + many_ids
            steps = options.tokens - 1
            metrics |= {
                f"{name}_request_overhead_ms": 1e3 * one.added_seconds,
                f"{name}_token_overhead_us": 1e6 * (many.added_seconds - one.added_seconds) / steps,
                f"{name}_library_request_ms": 1e3 * statistics.median(one.library),
                f"{name}_library_token_us": 1e6
                * (statistics.median(many.library) - statistics.median(one.library))
                / steps,
            }
    arm.report(all_ids, metrics)


if __name__ == "__main__":
    main()
