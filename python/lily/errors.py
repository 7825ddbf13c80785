"""The error tree. Each error carries its numbers as attributes and the fix in its text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .outputs import Usage


class LilyError(Exception):
    """Root of all errors that lily raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies, and errors that come from another process, are made of text and attributes, not by a constructor."""
        return _rebuilt, (type(self), *self.args), self.__dict__


class CheckpointError(LilyError, ValueError):
    """A checkpoint cannot be used: names the file, tensor or field, what was expected and what was found."""

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        tensor: str | None = None,
        field: str | None = None,
        expected: str | None = None,
        found: str | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.tensor = tensor
        self.field = field
        self.expected = expected
        self.found = found


class ContextLengthError(LilyError, ValueError):
    """Prompt and completion do not fit into the context. Nothing was truncated.

    prompt_tokens: at least so many, as the message says then, if the text is far too long to be made tokens of.
    """

    def __init__(self, message: str, *, prompt_tokens: int, max_tokens: int, max_context: int) -> None:
        super().__init__(message)
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.max_context = max_context


class MemoryLimitError(LilyError, MemoryError):
    """The work does not fit into the memory budget. Raised before it starts."""

    def __init__(
        self, message: str, *, required_bytes: int, available_bytes: int, limit_bytes: int, suggestion: str
    ) -> None:
        super().__init__(message)
        self.required_bytes = required_bytes
        self.available_bytes = available_bytes
        self.limit_bytes = limit_bytes
        self.suggestion = suggestion


class ChatTemplateError(LilyError, ValueError):
    """A chat template refuses the messages, or cannot be rendered."""

    def __init__(self, message: str, *, message_index: int | None = None, role: str | None = None) -> None:
        super().__init__(message)
        self.message_index = message_index
        self.role = role


class GrammarError(LilyError, ValueError):
    """A grammar or JSON schema is malformed, or asks for something that cannot be enforced.

    schema_path: JSON pointer of the part of the schema that is refused, such as `#/properties/age`; None for the rest.
    """

    def __init__(self, message: str, *, schema_path: str | None = None) -> None:
        super().__init__(message)
        self.schema_path = schema_path


class ToolCallError(LilyError, ValueError):
    """A tool cannot be offered to the model: its description is malformed, or nothing has the name that was chosen."""

    def __init__(self, message: str, *, tool_name: str | None = None) -> None:
        super().__init__(message)
        self.tool_name = tool_name


class CancelledError(LilyError):
    """The request was cancelled by its owner. `usage` counts the work done so far."""

    def __init__(self, message: str, *, usage: Usage | None = None) -> None:
        super().__init__(message)
        self.usage = usage


class EngineClosedError(LilyError, RuntimeError):
    """The engine or the session was closed."""


class DeviceError(LilyError, RuntimeError):
    """A device failed. The engine survives unless `fatal` is set."""

    def __init__(self, message: str, *, device: str, kernel: str, code: str, fatal: bool = False) -> None:
        super().__init__(message)
        self.device = device
        self.kernel = kernel
        self.code = code
        self.fatal = fatal


class SnapshotError(LilyError, ValueError):
    """A saved state cannot be used: damaged, or of another model. Nothing of it was used."""

    def __init__(self, message: str, *, path: str, reason: str) -> None:
        super().__init__(message)
        self.path = path
        self.reason = reason


def _rebuilt(kind: type[LilyError], *args: object) -> LilyError:
    return Exception.__new__(kind, *args)
