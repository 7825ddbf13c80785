"""The examples in docstrings run as they stand."""

from __future__ import annotations

import doctest
from types import ModuleType

import pytest

import lily.engine
import lily.params
import lily.prefix_cache
import lily.session
import lily.tools

MODULES = [lily.engine, lily.params, lily.prefix_cache, lily.session, lily.tools]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_examples(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert tried and not failed
