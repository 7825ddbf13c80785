"""The JSON and template files of a checkpoint, damaged at random: each is read, or refused with a typed error."""

import copy
import json
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lily.chat_template import load_chat_template
from lily.config import load_config
from lily.errors import ChatTemplateError, CheckpointError
from lily.hub import find_model
from lily.tokenizer import Tokenizer

# Six times as many examples as other property tests: together they take half a minute.
EXAMPLES = 6 * settings().max_examples
FIXTURES = settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
VALUES = st.one_of(
    st.sampled_from(
        [None, True, False, 0, -1, 2**40, 1e308, float("nan"), "", "\ud800", [], {}, [[]], [{}], {"": None}]
    ),
    st.sampled_from(
        ["BPE", "WordPiece", "Unigram", "ByteLevel", "affine", "default", "<|im_end|>", "a b", "{{", "{% x"]
    ),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to what a JSON value holds; of long lists and objects the first entries only."""
    children: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        children = list(value.items())[:40]
    elif isinstance(value, list):
        children = list(enumerate(value))[:4]
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


def mutate(value: Any, data: st.DataObject) -> Any:
    """A copy in which one to three places were replaced or removed."""
    value = copy.deepcopy(value)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(sorted(places(value), key=str) or [()]))
        if not path:
            return data.draw(VALUES)
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        if data.draw(st.booleans()):
            holder[path[-1]] = copy.deepcopy(data.draw(VALUES))  # a later turn may change it
        else:
            del holder[path[-1]]
    return value


@cache
def nano_files() -> dict[str, Any]:
    """The parsed JSON files of lily-nano. No fixture: hypothesis would print all of it."""
    names = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
    return {name: json.loads((find_model("lily-nano") / name).read_text()) for name in names}


def write(folder: Path, files: dict[str, Any]) -> None:
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value))


@FIXTURES
@given(data=st.data())
def test_configuration(tmp_path: Path, data: st.DataObject) -> None:
    files = nano_files()
    name = data.draw(st.sampled_from(sorted(files)))
    write(tmp_path, {**files, name: mutate(files[name], data)})
    try:
        config = load_config(tmp_path)
    except CheckpointError as error:
        assert error.path is not None and error.path in str(error)
    else:
        assert config.core_arguments()["sizes"]["num_linear_layers"] > 0
        assert all(0 <= token_id < config.vocab_size for token_id in config.stop_token_ids)


@FIXTURES
@given(data=st.data(), text=st.text(max_size=20))
def test_tokenizer(tmp_path: Path, data: st.DataObject, text: str) -> None:
    files = nano_files()
    write(tmp_path, {"tokenizer.json": mutate(files["tokenizer.json"], data)})
    try:
        tokenizer = Tokenizer(tmp_path, 4096)
    except CheckpointError as error:
        assert error.path is not None and error.path in str(error)
    else:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) in (text, unicodedata.normalize("NFC", text))
        tokenizer.encode(text + "<|im_end|>", allow_special=True)


@FIXTURES
@given(data=st.data())
def test_chat_template(tmp_path: Path, lily_nano: Path, tokenizer: Tokenizer, data: st.DataObject) -> None:
    source = (lily_nano / "chat_template.jinja").read_text()
    for _ in range(data.draw(st.integers(1, 3))):
        at, length = data.draw(st.integers(0, len(source))), data.draw(st.integers(0, 30))
        part = st.sampled_from(["{{", "}}", "{%", "%}", "{% if x %}", "{% endif %}", "'", "[", "|", "**", "1/0", "-"])
        source = source[:at] + data.draw(part | st.text(max_size=3)) + source[at + length :]
    (tmp_path / "chat_template.jinja").write_text(source, errors="surrogatepass")
    try:
        template = load_chat_template(tmp_path, tokenizer, None)
        assert template is not None
        template.render([{"role": "user", "content": "<|im_end|>"}]).token_ids(tokenizer)
    except (ChatTemplateError, CheckpointError) as error:
        assert str(error)


@pytest.fixture(scope="module")
def tokenizer(lily_nano: Path) -> Tokenizer:
    return Tokenizer(lily_nano, 4096)


@FIXTURES
@given(content=st.binary(max_size=200))
def test_any_bytes(tmp_path: Path, tokenizer: Tokenizer, content: bytes) -> None:
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError):
        load_config(tmp_path)
    with pytest.raises(CheckpointError):
        Tokenizer(tmp_path, 4096)
    try:
        load_chat_template(tmp_path, tokenizer, None)
    except (ChatTemplateError, CheckpointError) as error:
        assert str(error)
