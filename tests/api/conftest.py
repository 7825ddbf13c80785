from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lily
from lily.hub import find_model
from lily.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def nano_folder() -> Path:
    return find_model("lily-nano")


@pytest.fixture(scope="session")
def tokenizer(nano_folder: Path) -> Tokenizer:
    return Tokenizer(nano_folder, 4096)


@pytest.fixture(scope="session")
def engine() -> Iterator[lily.Engine]:
    with lily.Engine("lily-nano", max_context=1024, progress=False) as engine:
        yield engine
