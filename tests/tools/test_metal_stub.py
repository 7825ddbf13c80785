"""tools/metal_stub against facts.json: what sources that know Metal's own headers say about all that it declares."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ziglang")

from tools.metal_stub.declared import FOLDER, declared, disagreements

FACTS: dict[str, Any] = json.loads((FOLDER / "facts.json").read_text())


def test_everything_is_as_the_facts_say() -> None:
    stub = declared()
    assert disagreements(stub, FACTS) == []
    assert len(stub.signatures) > 100 and len(stub.values) > 20
    assert sum("pyobjc" in facts for facts in FACTS["methods"].values()) > 40


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ("offset:(NSUInteger)offset", "offset:(float)offset", "float"),
        ("- (void)commit;", "- (BOOL)commit;", "commit: bool () here, void () in metal-cpp"),
        ("- (void)commit;", "- (void)commitNow;", "commitNow: no source knows it"),
        (
            "MTLResourceStorageModeShared = 0",
            "MTLResourceStorageModeShared = 1",
            "MTLResourceStorageModeShared: 1 here",
        ),
    ],
    ids=["type of an argument", "type of a result", "unknown selector", "value of an enumerator"],
)
def test_a_wrong_declaration_is_found(tmp_path: Path, good: str, bad: str, message: str) -> None:
    for name in ("Foundation", "Metal"):
        shutil.copytree(FOLDER / name, tmp_path / name)
    header = tmp_path / "Metal" / "Metal.h"
    text = header.read_text()
    assert good in text
    header.write_text(text.replace(good, bad, 1))
    found = disagreements(declared(tmp_path), FACTS)
    assert any(message in line for line in found), found
