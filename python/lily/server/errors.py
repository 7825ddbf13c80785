"""Errors as HTTP answers: a status, and an object that says what was wrong and how to repair it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from ..errors import (
    CancelledError,
    ChatTemplateError,
    ContextLengthError,
    DeviceError,
    EngineClosedError,
    GrammarError,
    LilyError,
    MemoryLimitError,
    ToolCallError,
)
from ..params import SamplingParams

Dialect = Literal["openai", "anthropic"]

_OPENAI_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "unavailable_error",
}
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
_FIELDS: Final = frozenset(SamplingParams.__dataclass_fields__) | {
    "messages", "prompt", "tools", "tool_choice", "response_format", "reasoning", "top_logprobs",
}  # fmt: skip
NO_NAMES: Final[Mapping[str, str]] = MappingProxyType({})
CLIENT_CLOSED: Final = 499  # nobody gets this status; it stands in the log and in the metrics


class ApiError(Exception):
    """An answer other than 200. param: the field that is wrong. retry_after: seconds after which to try again.

    closes: the connection ends here, since nobody knows what the rest of its bytes means.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after = retry_after
        self.closes = closes

    @property
    def type(self) -> str:
        """In OpenAI's words."""
        return _OPENAI_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def openai(self) -> dict[str, object]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def body(self, dialect: Dialect, request_id: str) -> dict[str, object]:
        if dialect == "openai":
            return {"error": self.openai()}
        kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}, "request_id": request_id}


def loading() -> ApiError:
    return ApiError(503, "Loading model", code="model_loading", retry_after=2)


def stopping() -> ApiError:
    return ApiError(503, "the server is shutting down", code="shutting_down", retry_after=5)


def unsupported(param: str, message: str) -> ApiError:
    return ApiError(400, message, code="unsupported_parameter", param=param)


def invalid(param: str | None, message: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)


def without_text(where: str, part: Mapping[str, object]) -> ApiError:
    """The error of a text part (or block) whose text is not there, or no string."""
    found = f"is {type(part['text']).__name__}" if "text" in part else "is missing"
    return invalid(
        f"{where}.text", f"{where} is of type {part['type']!r}, but its field 'text' {found}; it must be a string"
    )


def describe(error: BaseException, *, running: bool, names: Mapping[str, str] = NO_NAMES) -> ApiError:
    """What a client is told about an error of the engine.

    running: the request was accepted already, so that a plain ValueError or TypeError is not about its fields.
    names: what the route calls fields to which the engine gives other names.
    """
    param, message = _field_of(str(error), names)
    match error:
        case ApiError():
            return error
        case ContextLengthError():
            return ApiError(400, message, code="context_length_exceeded")
        case ChatTemplateError():
            if error.message_index is not None and "messages" not in names:
                param = f"messages[{error.message_index}]"
            return ApiError(400, message, param=param, code="invalid_messages")
        case GrammarError():
            return ApiError(400, message, code="invalid_grammar", param=error.schema_path)
        case ToolCallError():
            return ApiError(400, message, code="invalid_tools", param=param or "tools")
        case MemoryLimitError():
            return ApiError(413, message, code="memory_limit_exceeded")
        case EngineClosedError():
            return stopping()
        case CancelledError():
            return ApiError(CLIENT_CLOSED, "the client closed the request", code="cancelled")
        case DeviceError():
            return ApiError(500, message, code="device_error")
        case RecursionError():
            return invalid(None, "a value of the request is nested too deeply")
        case ValueError() | TypeError() if not running and not isinstance(error, LilyError):
            return invalid(param, message)
        case _:
            return ApiError(
                500, "an internal error ended this request; the server's log has its traceback", code="internal_error"
            )


def _field_of(message: str, names: Mapping[str, str]) -> tuple[str | None, str]:
    """The field that a message begins with, and the message, both with the route's own name of it."""
    first, space, rest = message.partition(" ")
    if first not in _FIELDS:
        return None, message
    name = names.get(first, first)
    return name, name + space + rest
