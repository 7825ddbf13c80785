"""The body of a request: read within limits of size, time, nesting and number, then decoded into its schema."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from starlette.requests import ClientDisconnect, Request

from ..unicode import first_wrong_byte, lone_surrogate
from .errors import ApiError, invalid
from .options import BODY_SECONDS, MAX_BODY_BYTES, MAX_JSON_CONTAINERS, MAX_JSON_DEPTH, MAX_JSON_VALUES

Schema = TypeVar("Schema")  # a msgspec.Struct

_log: Final = logging.getLogger("lily.server")
_NO_STRUCTURE: Final = bytes(set(range(256)) - set(b'",[{]}'))
_STEPS: Final = bytes.maketrans(b'",[{]}', b"\x00\x00\x01\x01\xff\xff")  # as signed bytes: one level in, one level out
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_VALIDATION_PATH: Final = re.compile(r"(.*?)(?: - at `(?:key in )?\$\.?(.*)`)?", re.DOTALL)


async def read_body(request: Request) -> bytes:
    """Raises ApiError 413 for a body that is too large, 408 for one that comes too slowly, 415 for a compressed one."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        message = f"the body has the content-encoding {encoding!r}; send it as it is"
        raise ApiError(415, message, code="unsupported_encoding")
    declared = request.headers.get("content-length", "0")
    if len(declared) > 18 or int(declared) > MAX_BODY_BYTES:  # the protocol has checked that these are digits
        raise _too_large(f"{declared} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise _too_large("larger")
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {BODY_SECONDS} seconds", code="body_timeout") from None
    except ClientDisconnect:
        raise ApiError(499, "the client left before its request was complete", code="cancelled") from None
    return bytes(body)


def decode(body: bytes, decoder: msgspec.json.Decoder[Schema]) -> Schema:
    """Raises ApiError 400 for what is no JSON, nested too deeply or of a wrong type, naming the field."""
    # Few brackets cannot be nested deeply, and few commas part few values: many bodies need no closer look.
    if body.count(b"[") + body.count(b"{") > MAX_JSON_DEPTH or body.count(b",") > MAX_JSON_VALUES - MAX_JSON_DEPTH:
        depth, containers, values = structure(body)
        if depth > MAX_JSON_DEPTH:
            raise invalid(None, f"the body is nested {depth} levels deep; at most {MAX_JSON_DEPTH} are supported")
        if containers > MAX_JSON_CONTAINERS:
            raise invalid(
                None,
                f"the body has {containers} objects and lists, such as messages and their parts; "
                f"at most {MAX_JSON_CONTAINERS} are supported",
            )
        if values > MAX_JSON_VALUES:
            raise invalid(
                None,
                f"the body has {values} values, such as fields of messages and items of lists; "
                f"at most {MAX_JSON_VALUES} are supported",
            )
    try:
        decoded = decoder.decode(body)
    except msgspec.ValidationError as error:
        match = _VALIDATION_PATH.fullmatch(str(error))
        message, param = (match[1], match[2]) if match else (str(error), None)
        if message.startswith("Invalid enum value") and (allowed := _allowed_values(decoder.type, param or "")):
            message += f"; allowed are {', '.join(map(repr, allowed))}"
        raise invalid(param or None, f"{message}{f', in {param}' if param else ''}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, _unreadable(body, error), code="invalid_json") from None
    if _log.isEnabledFor(logging.DEBUG) and isinstance(decoded, msgspec.Struct):
        _report_unknown(body, decoded)
    return decoded


def _unreadable(body: bytes, error: Exception) -> str:
    try:
        body.decode()
    except UnicodeDecodeError as wrong:
        return f"the body is not UTF-8 text ({first_wrong_byte(wrong)})"
    # A text that was cut within a pair of surrogates; the decoder says only that bytes are missing.
    with suppress(ValueError, RecursionError):
        text = json.dumps(json.loads(body), ensure_ascii=False)
        if (half := _SURROGATE.search(text)) is not None:
            before = text[max(half.start() - 20, 0) : half.start()]
            return f"the body holds {lone_surrogate(half[0])}, behind {before!r}: half of a character, of a cut text"
    return f"the body is not JSON that can be read: {error}"


def structure(body: bytes) -> tuple[int, int, int]:
    """How deep brackets are nested outside of strings, how many open, and these with all commas: no fewer than members.

    Nothing else about the text is checked.
    """
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in body else body
    text = unescaped.translate(None, _NO_STRUCTURE)
    steps = np.frombuffer(text.translate(_STEPS), np.int8)
    codes = np.frombuffer(text, np.uint8)
    outside = ~np.logical_xor.accumulate(codes == ord('"'))
    steps = steps[outside]
    depth, containers = int(np.cumsum(steps, dtype=np.int32).max(initial=0)), int(np.count_nonzero(steps > 0))
    return depth, containers, containers + int(np.count_nonzero(codes[outside] == ord(",")))


def _allowed_values(schema: Any, path: str) -> Sequence[object]:
    """The values of the field at `path` ("tool_choice.type") of a schema, if it has one of a fixed set."""
    kinds = [msgspec.inspect.type_info(schema)]
    for name in path.split("."):
        structs = [kind for kind in _members(kinds) if isinstance(kind, msgspec.inspect.StructType)]
        kinds = [field.type for struct in structs for field in struct.fields if field.encode_name == name]
    return [value for kind in _members(kinds) if isinstance(kind, msgspec.inspect.LiteralType) for value in kind.values]


def _members(kinds: Sequence[msgspec.inspect.Type]) -> Iterator[msgspec.inspect.Type]:
    """The types, and those that unions and annotations are made of."""
    for kind in kinds:
        if isinstance(kind, msgspec.inspect.UnionType):
            yield from _members(kind.types)
        elif isinstance(kind, msgspec.inspect.Metadata):
            yield from _members([kind.type])
        else:
            yield kind


def _report_unknown(body: bytes, decoded: msgspec.Struct) -> None:
    known = {field.encode_name for field in msgspec.structs.fields(decoded)}
    unknown = sorted(set(msgspec.json.decode(body, type=dict[str, msgspec.Raw])) - known)
    if unknown:
        _log.debug("unknown fields are ignored: %s", ", ".join(unknown))


def _too_large(found: str) -> ApiError:
    return ApiError(413, f"the body is {found}; at most {MAX_BODY_BYTES} bytes are accepted", code="request_too_large")
