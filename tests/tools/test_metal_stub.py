"""tools/metal_stub against facts.json: what sources that know Metal's own headers say about all that it declares."""

import json
from typing import Any

import pytest

pytest.importorskip("ziglang")

from tools.metal_stub.declared import FOLDER, Declared, declared

FACTS: dict[str, Any] = json.loads((FOLDER / "facts.json").read_text())


@pytest.fixture(scope="module")
def stub() -> Declared:
    return declared()


def test_every_method_is_confirmed_by_a_source(stub: Declared) -> None:
    assert sorted(stub.signatures) == sorted(FACTS["methods"])
    assert len(stub.signatures) > 100


def test_signatures_are_those_of_metal_cpp(stub: Declared) -> None:
    known = {key: facts["metal-cpp"] for key, facts in FACTS["methods"].items() if "metal-cpp" in facts}
    assert {key: stub.signatures[key] for key in known} == known


def test_encodings_are_those_that_pyobjc_was_compiled_with(stub: Declared) -> None:
    known = {key: facts["pyobjc"] for key, facts in FACTS["methods"].items() if "pyobjc" in facts}
    assert len(known) > 40
    assert {key: stub.encodings[key] for key in known} == known


def test_values_of_enumerators(stub: Declared) -> None:
    assert stub.values == FACTS["values"]
