"""Safetensors files that are damaged or hostile: each is refused with a message that names the file, never a crash."""

import json
import os
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from lily import _core
from lily.errors import CheckpointError

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file with a header (an object, or its text) and that many bytes of data, and returns its path."""

    def write(header: Any, data: int = 0, length: int | None = None) -> str:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        path = tmp_path / "model.safetensors"
        path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(data))
        return str(path)

    return write


def tensor(begin: int, end: int, dtype: str = "U32", shape: Any = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def refused(path: str, match: str) -> CheckpointError:
    with pytest.raises(CheckpointError, match=match) as caught:
        _core.read_safetensors_header(path)
    assert caught.value.path == path
    assert path in str(caught.value)
    return caught.value


def test_reads_what_the_library_writes(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.zeros((0, 5), np.float16),
        "ü.weight": np.ones(3, np.uint32),
        "scalar": np.array(2.0),
        "bytes": np.arange(5, dtype=np.int8),
    }
    path = tmp_path / "model.safetensors"
    save_file(arrays, path, metadata={"format": "np", "quote": '"\\\n\u2028😀'})
    content = path.read_bytes()
    rows = {
        name: (dtype, shape, content[begin:end])
        for name, dtype, shape, begin, end in _core.read_safetensors_header(str(path))
    }
    types = {"a": "F32", "b": "F16", "ü.weight": "U32", "scalar": "F64", "bytes": "I8"}
    assert rows == {name: (types[name], list(a.shape), a.tobytes()) for name, a in arrays.items()}


def test_padding_and_odd_data_start(write: Write) -> None:
    text = json.dumps({"a": tensor(0, 8)}).encode()
    text += b" " * (3 - (8 + len(text)) % 2)
    path = write(text, 8)
    begin = len(text) + 8
    assert begin % 2 == 1
    assert _core.read_safetensors_header(path) == [("a", "U32", [2], begin, begin + 8)]


@pytest.mark.parametrize(
    ("header", "data", "match"),
    [
        ({"a": tensor(0, 8), "b": tensor(4, 12)}, 12, "overlaps"),
        ({"a": tensor(0, 8), "b": tensor(0, 8)}, 8, "overlaps"),
        ({"a": tensor(8, 0, shape=[2])}, 8, "ends before it begins"),
        ({"a": tensor(0, 16)}, 8, "outside the file"),
        ({"a": tensor(2**64 - 8, 2**64 - 1, shape=[2])}, 8, "outside the file"),
        ({"a": tensor(0, 8, shape=[3])}, 8, r"12 bytes for U32 \[3\]"),
        ({"a": tensor(0, 8, dtype="F16")}, 8, "4 bytes for F16"),
        ({"a": tensor(0, 8, dtype="Q4_0")}, 8, "unknown dtype .found Q4_0"),
        ({"a": tensor(0, 8, shape=[2**32, 2**32, 4])}, 8, "shape is too large"),
        ({"a": tensor(0, 1, dtype="F4", shape=[3])}, 1, "does not fill whole bytes"),
        ({"a": tensor(4, 8)}, 8, "belong to no tensor"),
        ({"a": tensor(0, 4)}, 8, "does not end with its last tensor"),
        ({}, 1, "does not end with its last tensor"),
    ],
)
def test_offsets_and_shapes(write: Write, header: Any, data: int, match: str) -> None:
    error = refused(write(header, data), match)
    assert error.tensor in (None, *header)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (b"", "'{' is missing"),
        (b"[]", "'{' is missing"),
        (b"{", "'\"' is missing"),
        (b'{"a"', "':' is missing"),
        (b'{"a":{}}', "needs dtype, shape and data_offsets"),
        (b'{"a":{"dtype":"U32","shape":[1]}}', "needs dtype, shape and data_offsets"),
        (b'{"a":{"dtype":"U32","shape":[1],"data_offsets":[0]}}', "needs dtype, shape and data_offsets"),
        (b'{"a":{"dtype":"U32","shape":[1],"data_offsets":[0,4,8]}}', "needs dtype, shape and data_offsets"),
        (b'{"a":{"dtype":1,"shape":[1],"data_offsets":[0,4]}}', "'\"' is missing"),
        (b'{"a":{"dtype":"U32","shape":1,"data_offsets":[0,4]}}', r"'\[' is missing"),
        (b'{"a":{"dtype":"U32","shape":[-1],"data_offsets":[0,4]}}', "whole number >= 0 is missing"),
        (b'{"a":{"dtype":"U32","shape":[1.0],"data_offsets":[0,4]}}', "not whole"),
        (b'{"a":{"dtype":"U32","shape":[1e0],"data_offsets":[0,4]}}', "not whole"),
        (b'{"a":{"dtype":"U32","shape":[01],"data_offsets":[0,4]}}', "leading zero"),
        (b'{"a":{"dtype":"U32","shape":[1,],"data_offsets":[0,4]}}', "whole number >= 0 is missing"),
        (b'{"a":{"dtype":"U32","shape":[18446744073709551616],"data_offsets":[0,4]}}', r"above 2\^64 - 1"),
        (b'{"a":{"dtype":"U32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}', r"above 2\^64 - 1"),
        (b'{"a":{"dtype":"U32","dtype":"U32","shape":[0],"data_offsets":[0,0]}}', '"dtype" comes twice'),
        (b'{"a":{"dtype":"U32","shape":[0],"data_offsets":[0,0],"x":1}}', 'unknown key "x"'),
        (b'{"a":{"dtype":"U32","shape":[0],"data_offsets":[0,0]},"a":{}}', '"a" comes twice'),
        (b'{"a":{"dtype":"U32","shape":[0],"data_offsets":[0,0]},"\\u0061":{}}', '"a" comes twice'),
        (b'{"__metadata__":{"k":"1","k":"2"}}', '"k" comes twice'),
        (b'{"__metadata__":{"k":1}}', "'\"' is missing"),
        (b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}", "'{' is missing"),
        (b'{"a":' * 100000, "unknown key|'{' is missing|'\"' is missing"),
        (b'{"\xff":{}}', "invalid UTF-8"),
        (b'{"\xc0\x80":{}}', "invalid UTF-8"),
        (b'{"\xed\xa0\x80":{}}', "invalid UTF-8"),
        (b'{"\xf4\x90\x80\x80":{}}', "invalid UTF-8"),
        (b'{"\xe2\x82', "invalid UTF-8"),
        (b'{"\\ud800":{}}', "surrogate"),
        (b'{"\\udc00":{}}', "surrogate"),
        (b'{"\\ud800\\u0041":{}}', "surrogate"),
        (b'{"\\u00g0":{}}', "hexadecimal"),
        (b'{"\\x":{}}', "unknown escape"),
        (b'{"a\nb":{}}', "control character"),
        (b'{"a', "does not end"),
        (b'{"a\\', "unknown escape"),
        (b"{}x", "text after the end"),
        (b"{},", "text after the end"),
        (b"{}\0", "text after the end"),
    ],
)
def test_header_text(write: Write, text: bytes, match: str) -> None:
    refused(write(text), match)


@pytest.mark.parametrize("length", [3, 100_000_001, 2**63, 2**64 - 1, 2**64 - 8])
def test_header_length(write: Write, length: int) -> None:
    refused(write(b"{}", length=length), "header")


def test_truncated_anywhere(write: Write) -> None:
    path = Path(write({"a": tensor(0, 8), "b": tensor(8, 16)}, 16))
    content = path.read_bytes()
    assert len(_core.read_safetensors_header(str(path))) == 2
    for length in range(len(content)):
        path.write_bytes(content[:length])
        refused(str(path), "header|too short|outside|end")


def test_not_a_file(tmp_path: Path) -> None:
    refused(str(tmp_path), "not a regular file")
    refused(str(tmp_path / "none.safetensors"), "No such file")
    refused("/dev/zero", "not a regular file")
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    refused(str(pipe), "not a regular file")  # at once: nobody writes


def test_no_permission(write: Write, as_nobody: Callable[[], AbstractContextManager[None]]) -> None:
    path = Path(write({"a": tensor(0, 8)}, 8))
    path.chmod(0)
    with as_nobody():
        refused(str(path), "Permission denied")


def test_files_are_closed_and_unmapped(write: Write) -> None:
    path = write({"a": tensor(0, 8)}, 12)
    if not Path("/proc/self/maps").exists():
        pytest.skip("this machine has no /proc")
    for _ in range(20):
        refused(path, "does not end with its last tensor")
    real = os.path.realpath(path)
    assert real not in map(os.path.realpath, Path("/proc/self/fd").iterdir())
    assert real not in Path("/proc/self/maps").read_text()


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_refused_like_the_library_does(write: Write, data: st.DataObject) -> None:
    """Random bytes of a good header are replaced: what lily accepts, the safetensors library reads the same way."""
    text = bytearray(json.dumps({"__metadata__": {"format": "mlx"}, "a": tensor(0, 8), "b": tensor(8, 16)}).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.binary(max_size=2) | st.sampled_from(b'{}[]",:\\0123456789 '.split(b","))
        )
    path = write(bytes(text), 16)
    try:
        rows = _core.read_safetensors_header(path)
    except CheckpointError:
        return
    try:
        arrays = load_file(path)
    except (SafetensorError, KeyError):  # KeyError: a dtype that NumPy does not have
        pytest.fail(f"lily accepts {bytes(text)!r}, the library does not")
    assert {(name, tuple(shape)) for name, _, shape, _, _ in rows} == {(name, a.shape) for name, a in arrays.items()}
