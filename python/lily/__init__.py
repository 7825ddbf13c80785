"""lily: the fastest, most trustworthy way to run Qwen3.6-35B-A3B and its family from Python."""

from importlib.metadata import version

from .engine import Engine
from .errors import (
    CancelledError,
    ChatTemplateError,
    CheckpointError,
    ContextLengthError,
    DeviceError,
    EngineClosedError,
    GrammarError,
    LilyError,
    MemoryLimitError,
    SnapshotError,
    ToolCallError,
)
from .log import show_log_from_environment
from .outputs import ChatChunk, ChatReply, Chunk, Completion, Timing, TokenLogprob, ToolCall, Usage
from .params import SamplingParams
from .prefix_cache import PrefixCache
from .session import Session

__version__ = version("lily")
show_log_from_environment()

__all__ = [
    "CancelledError",
    "ChatChunk",
    "ChatReply",
    "ChatTemplateError",
    "CheckpointError",
    "Chunk",
    "Completion",
    "ContextLengthError",
    "DeviceError",
    "Engine",
    "EngineClosedError",
    "GrammarError",
    "LilyError",
    "MemoryLimitError",
    "PrefixCache",
    "SamplingParams",
    "Session",
    "SnapshotError",
    "Timing",
    "TokenLogprob",
    "ToolCall",
    "ToolCallError",
    "Usage",
    "__version__",
]
