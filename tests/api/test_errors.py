"""Errors that travel: to other processes, and through copies."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from lily import errors
from lily.download import DownloadError
from lily.outputs import Usage

EVERY = [
    errors.LilyError("text"),
    errors.CheckpointError("text", path="a", tensor="b", field="c", expected="d", found="e"),
    DownloadError("text", path="a"),
    errors.ContextLengthError("text", prompt_tokens=1, max_tokens=2, max_context=2),
    errors.MemoryLimitError("text", required_bytes=3, available_bytes=2, limit_bytes=2, suggestion="less"),
    errors.ChatTemplateError("text", message_index=1, role="user"),
    errors.GrammarError("text", schema_path="#/a"),
    errors.ToolCallError("text", tool_name="a"),
    errors.CancelledError(
        "text", usage=Usage(prompt_tokens=1, completion_tokens=2, cached_tokens=0, reasoning_tokens=0)
    ),
    errors.EngineClosedError("text"),
    errors.DeviceError("text", device="metal", kernel="router", code="timeout", fatal=True),
    errors.SnapshotError("text", path="a", reason="b"),
]


def test_the_list_is_complete() -> None:
    named = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.LilyError)}
    assert {type(error) for error in EVERY} == named | {DownloadError}


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_copies_and_pickles_keep_text_and_numbers(error: errors.LilyError) -> None:
    pickled = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for twin in [copy.copy(error), copy.deepcopy(error), *pickled]:
        assert type(twin) is type(error) and str(twin) == "text" and vars(twin) == vars(error)


def fail() -> None:
    raise errors.DeviceError("text", device="metal", kernel="", code="timeout")


def test_an_error_of_a_worker_process_arrives() -> None:
    with (
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
        pytest.raises(errors.DeviceError, match="text") as caught,
    ):
        pool.submit(fail).result()
    assert caught.value.code == "timeout"
