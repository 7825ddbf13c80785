"""How one route reads a request and writes its answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from ..engine import Engine
from ..params import SamplingParams
from ..planner import ChatOptions
from ..progress import Progress
from ..stream import ChatStream
from .errors import NO_NAMES, ApiError, Dialect
from .run import EngineStream, Item, Run


class Asked(Protocol):
    """A decoded request that wants text."""

    @property
    def model(self) -> str | None: ...
    @property
    def stream(self) -> bool | None: ...


class Conversation(Asked, Protocol):
    """One that is a conversation; each of these raises ApiError for what is not supported."""

    def check(self) -> None: ...
    def chat_messages(self) -> list[Any]: ...
    def chat_options(self) -> ChatOptions: ...
    def params(self) -> SamplingParams: ...


AskedT = TypeVar("AskedT", bound=Asked)


class Form(ABC, Generic[AskedT, Item]):
    """Made from the decoded body, used for one request. id: of the answer. model: the name to answer with.

    route: for the log and the metrics. dialect: of errors. id_prefix: of the ids of answers.
    """

    route: ClassVar[str]
    id_prefix: ClassVar[str]
    dialect: ClassVar[Dialect] = "openai"
    ping: ClassVar[bytes] = b": ping\n\n"

    def __init__(self, request: AskedT, id: str, model: str) -> None:
        self._request = request
        self._id = id
        self._model = model
        self._created = int(time())
        self._last: Item | None = None  # of those that were written

    @property
    def wants_stream(self) -> bool:
        """Server-sent events instead of one object."""
        return bool(self._request.stream)

    @property
    def field_names(self) -> Mapping[str, str]:
        """What this route calls fields to which the engine gives other names."""
        return NO_NAMES

    @abstractmethod
    def start(self, engine: Engine, on_item: Callable[[], None]) -> EngineStream[Item]:
        """Check the request and submit it. Runs in a pool thread."""

    @abstractmethod
    def whole(self, items: Sequence[Item]) -> object:
        """The answer as one object: a fold over the same items that are streamed."""

    @abstractmethod
    def begin(self, run: Run[Item]) -> bytes:
        """Events that leave before there is anything to say."""

    @abstractmethod
    def delta(self, items: Sequence[Item]) -> bytes:
        """Events for new items; may be empty."""

    def progress(self, progress: Progress, cached_tokens: int, seconds: float) -> bytes:
        """Events for progress of the prompt, `seconds` after the device began with it."""
        return b""

    @abstractmethod
    def end(self) -> bytes:
        """Events behind the last item."""

    @abstractmethod
    def failed(self, error: ApiError, request_id: str) -> bytes:
        """Events that end a stream with an error."""


def start_chat(engine: Engine, request: Conversation, on_item: Callable[[], None]) -> ChatStream:
    """What `Form.start` does for a conversation."""
    request.check()
    return engine._chat_stream(request.chat_messages(), on_item, params=request.params(), **request.chat_options())
