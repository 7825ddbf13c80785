"""Arm: what the server adds to the library, per request and per streamed token, over a local connection."""

import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench import arm
from lily import Engine, SamplingParams

LISTENING = re.compile(r"listening on http://([\d.]+):(\d+)")


@contextmanager
def server(*flags: str) -> Iterator[http.client.HTTPConnection]:
    """A connection to `lily serve` in a process of its own, once it is ready."""
    child = subprocess.Popen([sys.executable, "-m", "lily", "serve", "--port", "0", *flags], stderr=subprocess.PIPE)
    try:
        assert child.stderr is not None
        match = next(found for line in child.stderr if (found := LISTENING.search(line.decode())))
        connection = http.client.HTTPConnection(match[1], int(match[2]))
        while _get(connection, "/ready") != 200:
            time.sleep(0.05)
        os.set_blocking(child.stderr.fileno(), False)  # its log is not read: it must not block
        yield connection
        connection.close()
    finally:
        child.terminate()
        child.wait()


def _get(connection: http.client.HTTPConnection, path: str) -> int:
    connection.request("GET", path)
    response = connection.getresponse()
    response.read()
    return response.status


def post(connection: http.client.HTTPConnection, body: object) -> tuple[float, list[str]]:
    """Seconds of one request, and the lines of its answer."""
    data = json.dumps(body).encode()
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", data)
    response = connection.getresponse()
    lines = response.read().decode().splitlines()
    seconds = time.perf_counter() - start
    assert response.status == 200, lines
    return seconds, lines


def library(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> tuple[float, list[int]]:
    """Seconds of one request, read token by token, and its token ids."""
    start = time.perf_counter()
    token_ids = [chunk.token_id for chunk in engine.stream(prompt, params)]
    return time.perf_counter() - start, token_ids


def main() -> None:
    parser = arm.options(__doc__ or "")
    parser.add_argument("--tokens", type=int, default=256, help="of a stream (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=20, help="of each kind of request (default: %(default)s)")
    options = parser.parse_args()

    length = options.context + options.tokens
    flags = ("--model", options.model, "--device", options.device, "--max-context", str(length))
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    many = one.merged({"max_tokens": options.tokens})
    seconds: dict[str, list[float]] = {name: [] for name in ("http_one", "lib_one", "http_many", "lib_many")}
    with (
        Engine(options.model, device=options.device, max_context=length, progress=False) as engine,
        server(*flags) as http,
    ):
        prompt = arm.prompt(options.context, engine.config.vocab_size)
        asked = {"prompt": prompt, "temperature": 0, "ignore_eos": True}
        for repeat in range(options.repeats + 1):
            lib_one, _ = library(engine, prompt, one)
            http_one, _ = post(http, asked | {"max_tokens": 1})
            lib_many, token_ids = library(engine, prompt, many)
            http_many, lines = post(http, asked | {"max_tokens": options.tokens, "stream": True})
            if repeat:  # the first round fills the prefix caches
                for name, value in zip(seconds, (http_one, lib_one, http_many, lib_many), strict=True):
                    seconds[name].append(value)
        text = "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines if line.startswith("data: {"))
        assert text == engine.generate(prompt, many).text
    median = {name: statistics.median(values) for name, values in seconds.items()}
    least = {name: min(values) for name, values in seconds.items()}
    metrics = {
        "request_overhead_ms": 1e3 * (median["http_one"] - median["lib_one"]),
        "request_overhead_least_ms": 1e3 * (least["http_one"] - least["lib_one"]),
        "token_overhead_us": 1e6 * (median["http_many"] - median["lib_many"]) / options.tokens,
        "token_overhead_least_us": 1e6 * (least["http_many"] - least["lib_many"]) / options.tokens,
        "library_token_us": 1e6 * least["lib_many"] / options.tokens,
    }
    arm.report(token_ids, metrics)


if __name__ == "__main__":
    main()
