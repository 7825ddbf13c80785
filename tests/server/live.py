"""A server in a thread of the test, with its engine at hand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx

from lily import Engine
from lily.server import ServerOptions
from lily.server.host import EngineMaker
from lily.server.process import Server, bind
from tests.gated import Gate, gated, wait_until

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "Who are you?"}]
ANSWER = "I am lily-nano, a very small language model made to test the lily engine."


class Live:
    def __init__(self, make_engine: EngineMaker, *, send_buffer_bytes: int = 0, **options: Any) -> None:
        options = {"served_model_names": ("lily-nano",), "port": 0} | options
        self._listener = bind("127.0.0.1", options["port"])
        if send_buffer_bytes:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = Server(make_engine, ServerOptions(**options))
        self.service = self.server.service
        self.client = httpx.Client(base_url=self.url, timeout=300)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self._listener]})
        self._thread.start()

    @property
    def engine(self) -> Engine:
        return self.service.host.engine

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.client.post(path, json=body)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        wait_until(condition)

    def wait_until_ready(self) -> None:
        self.wait_until(lambda: self.service.host.status == "ready")

    def wait_until_idle(self) -> None:
        """No request is left, in the server and in the engine."""
        engine = self.engine
        self.wait_until(lambda: len(self.service.admission) == 0 and not engine._owner.call(lambda: engine._running))

    def gated(self) -> AbstractContextManager[Gate]:
        """Steps of requests that come inside wait for permits."""
        return gated(self.engine)

    @contextmanager
    def device_held(self) -> Iterator[None]:
        """The device is busy with one endless step."""
        held, release = threading.Event(), threading.Event()

        def hold() -> None:
            held.set()
            release.wait()

        self.engine._owner.post(hold)
        held.wait()
        try:
            yield
        finally:
            release.set()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of one metric that have these labels."""
        total = 0.0
        for line in self.client.get("/metrics").text.splitlines():
            sample, _, value = line.rpartition(" ")
            found, _, rest = sample.partition("{")
            if found == name and all(f'{key}="{label}"' in rest for key, label in labels.items()):
                total += float(value)
        return total

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(300)
        assert not self._thread.is_alive()
        self._listener.close()
        self.client.close()


def nano(**options: Any) -> EngineMaker:
    options = {"max_context": 2048} | options
    return lambda report: Engine("lily-nano", progress=report, **options)


@contextmanager
def serving(make_engine: EngineMaker | None = None, **options: Any) -> Iterator[Live]:
    live = Live(make_engine or nano(), **options)
    try:
        live.wait_until_ready()
        yield live
    finally:
        live.stop()


class Drawn:
    """What the device says that it has drawn."""

    def __init__(self, token_id: int) -> None:
        self.token_id = token_id
        self.logprob = -0.5
        self.top_logprobs: list[tuple[int, float]] = []


class Puppet:
    """The runtime of an engine, except that each request draws the tokens of a script: a real model says nothing on
    demand. An exception in the script is raised instead of a token."""

    def __init__(self, engine: Engine, script: Sequence[int | BaseException]) -> None:
        self._runtime = engine.runtime
        self._script = script
        self._drawn: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runtime, name)

    def prefill(self, timeline: Any, *arguments: Any, **options: Any) -> object:
        result = self._runtime.prefill(timeline, *arguments, **options)
        return None if result is None else self._draw(timeline)

    def decode(self, timelines: Sequence[Any], *arguments: Any, **options: Any) -> list[Drawn]:
        self._runtime.decode(timelines, *arguments, **options)
        return [self._draw(timeline) for timeline in timelines]

    def _draw(self, timeline: Any) -> Drawn:
        place = self._drawn.get(id(timeline), 0)
        token = self._script[place]
        self._drawn[id(timeline)] = (place + 1) % len(self._script)
        if isinstance(token, BaseException):
            raise token
        return Drawn(token)


@contextmanager
def saying(live: Live, text: str | Sequence[int | BaseException]) -> Iterator[None]:
    """Every answer is this text, up to the end of its turn."""
    engine = live.engine
    script = engine.tokenize(text + "<|im_end|>", allow_special=True) if isinstance(text, str) else text
    runtime = engine._runtime
    engine._runtime = Puppet(engine, script)  # type: ignore[assignment]
    try:
        yield
    finally:
        engine._runtime = runtime


def events(text: str) -> list[tuple[str | None, str]]:
    """Name and data of each server-sent event."""
    out = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
        if fields:
            out.append((fields.get("event"), fields["data"]))
    return out
