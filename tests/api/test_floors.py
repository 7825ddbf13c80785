from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import pytest

from lily.config import ModelConfig, load_config
from lily.floors import decode_bytes, prefill_operations, recurrent_state_bytes, weight_bytes
from tools.make_synthetic import Model

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


def test_operations_are_those_of_the_tensors(model: tuple[ModelConfig, int]) -> None:
    config, column = model
    name = ("qwen3.6-35b-a3b-mlx-4bit", "qwen3-next-80b-a3b-mlx-4bit")[column]
    tensors = Model(json.loads((ROOT / "tests" / "model" / "configs" / f"{name}.json").read_text())).tensors()
    per_token = head = 0
    for tensor in tensors:
        if not tensor.name.endswith(".scales") or "embed_tokens" in tensor.name:
            continue
        weights = 64 * math.prod(tensor.shape)  # a scale for each group of 64
        if "switch_mlp" in tensor.name:
            assert tensor.shape[0] == config.num_experts
            weights = weights // config.num_experts * config.num_experts_per_tok
        if "lm_head" in tensor.name:
            head += weights
        else:
            per_token += weights
    for tokens in (1, 512):
        assert prefill_operations(config, tokens) == 2 * (tokens * per_token + head)


def test_operations_of_a_token_are_those_of_the_design(model: tuple[ModelConfig, int]) -> None:
    config, column = model
    parts = cell(r"prefill GFLOP per token \(no head\): delta-net / attention / experts / shared / router", column)
    per_token = (prefill_operations(config, 2) - prefill_operations(config, 1)) / 1e9
    assert per_token == pytest.approx(sum(map(float, parts.split("/"))), abs=0.025)  # five rounded numbers
