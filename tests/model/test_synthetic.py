"""Synthetic checkpoints: the published configurations load; cut down, they agree with the reference."""

import json
from pathlib import Path

import numpy as np
import pytest

import lily
from lily import Engine, _core
from lily.config import load_config
from tests.oracles.forward import forward
from tools.make_synthetic import Model, make_synthetic

CONFIGS = sorted((Path(__file__).parent / "configs").glob("*.json"))
SMALL = {
    **{"hidden_size": 128, "num_hidden_layers": 4, "vocab_size": 1000, "num_experts": 16, "num_experts_per_tok": 3},
    **{"moe_intermediate_size": 64, "shared_expert_intermediate_size": 128, "linear_num_key_heads": 2},
    **{"linear_num_value_heads": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_published_configurations_are_accepted(path, tmp_path):
    (tmp_path / "config.json").write_bytes(path.read_bytes())
    config = load_config(tmp_path)
    assert config.num_experts_per_tok in (8, 10)
    assert config.max_position_embeddings == 262_144


@pytest.mark.parametrize(
    ("stem", "num_tensors", "num_bytes"),
    [("qwen3.6-35b-a3b-mlx-4bit", 1757, 19.51e9), ("qwen3-next-80b-a3b-mlx-4bit", 1891, 44.84e9)],
)
def test_counts_are_those_of_the_real_files(stem, num_tensors, num_bytes):
    # docs/design/model.md section 2.2
    config = json.loads((Path(__file__).parent / "configs" / f"{stem}.json").read_text())
    tensors = list(Model(config).tensors())
    assert len(tensors) == num_tensors
    assert sum(t.nbytes for t in tensors) == pytest.approx(num_bytes, rel=1e-3)


@pytest.mark.parametrize("unaligned", [False, True])
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_small_one_agrees_with_the_reference(path, unaligned, tmp_path):
    config = json.loads(path.read_text())
    config["eos_token_id"] = 999
    config.get("text_config", config).update(SMALL, eos_token_id=999)
    folder = make_synthetic(tmp_path, config, layers=4, unaligned=unaligned)
    runtime = _core.Runtime(
        str(folder),
        _core.ModelConfig(**load_config(folder).core_arguments()),
        memory_limit=1 << 30,
        max_context=512,
        dtype="float32",
    )
    report = runtime.load_report
    assert (report["mapped_bytes"] == 0) == unaligned
    timeline = runtime.timeline()
    token_ids = (37 * np.arange(40, dtype=np.uint32) + 11) % 1000
    runtime.prefill(timeline, token_ids, wants_logits=True)
    reference = forward(folder, token_ids.tolist())[-1]
    error = np.sqrt(((timeline.logits - reference) ** 2).mean() / (reference**2).mean())
    assert error < 1e-5


def test_few_experts_leave_the_state_at_its_real_size(tmp_path):
    config = json.loads(next(path for path in CONFIGS if path.stem == "qwen3.6-35b-a3b-mlx-4bit").read_text())
    folder = make_synthetic(tmp_path, config, experts=8, hollow=True)
    runtime = _core.Runtime(
        str(folder), _core.ModelConfig(**load_config(folder).core_arguments()), memory_limit=8 << 30, max_context=512
    )
    assert runtime.memory_bytes["weights"] < 2 << 30
    # docs/design/model.md: 30 layers of 32 x 128 x 128 and 3 x 8192 float32, 10 layers of 256 x 2 x 2 x 256 elements
    assert runtime.state_use["slot_bytes"] == 30 * 4 * (32 * 128 * 128 + 3 * 8192)
    assert runtime.state_use["page_bytes"] == 10 * 256 * 2 * 2 * 256 * (2 if runtime.dtype == "float16" else 4)


def test_the_tokenizer_of_another_model_brings_its_own_end_of_text(tmp_path):
    config = json.loads(next(path for path in CONFIGS if path.stem == "qwen3.6-35b-a3b-mlx-4bit").read_text())
    nano = Path(lily.__file__).parent / "models" / "lily-nano"
    folder = make_synthetic(tmp_path, config, layers=4, experts=8, hollow=True, tokenizer=nano)
    assert set(load_config(folder).stop_token_ids) <= set(load_config(nano).stop_token_ids)
    with Engine(folder, device="cpu", max_context=512, memory_limit=8 << 30, progress=False) as engine:
        assert "".join(engine.tokenizer.decode(engine.tokenizer.encode("a text"))) == "a text"
