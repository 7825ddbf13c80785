from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from lily.config import ModelConfig, load_config
from lily.floors import decode_bytes, recurrent_state_bytes, weight_bytes

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "design" / "model.md").read_text()


@pytest.fixture(params=[("qwen3.6-35b-a3b-mlx-4bit", 0), ("qwen3-next-80b-a3b-mlx-4bit", 1)], ids=["35B", "80B"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ModelConfig, int]:
    name, column = request.param
    shutil.copy(ROOT / "tests" / "model" / "configs" / f"{name}.json", tmp_path / "config.json")
    return load_config(tmp_path), column


def cell(row: str, column: int) -> str:
    match = re.search(rf"^\| {row} \| ([^|]*) \| ([^|]*) \|$", TABLE, re.MULTILINE)
    assert match is not None
    return match[column + 1].strip(" *").replace(",", "")


def test_bytes_are_those_of_the_design(model: tuple[ModelConfig, int]) -> None:
    config, column = model
    assert f"{weight_bytes(config) / 1e6:.1f}" == cell(r"\*\*sum of weights\*\*", column)
    assert f"{2 * recurrent_state_bytes(config) / 1e6:.1f}" == cell("recurrent state, read . written once", column)
    fixed, per_token = cell(r"\*\*decode floor at context n\*\* \(bytes\)", column).split("+")
    kv = int(per_token.strip().split()[0])
    assert f"{decode_bytes(config, 0, kv) / 1e9:.3f}e9" == fixed.strip()
    assert decode_bytes(config, 1000, kv) - decode_bytes(config, 0, kv) == 1000 * kv
