"""NaN and infinity in the weights: refused at loading where they are scanned, else found in the first logits."""

import json
import shutil
import struct
from pathlib import Path

import pytest

from lily import Engine
from lily.errors import CheckpointError, DeviceError
from tests.model.metal import require_metal

LAYER = "language_model.model.layers"
BF16_BITS = {"nan": 0x7FC0, "inf": 0x7F80}


@pytest.fixture
def model(tmp_path: Path, lily_nano: Path) -> Path:
    return shutil.copytree(lily_nano, tmp_path / "model")


def damage(folder: Path, tensor: str, value: str, place: int = 2) -> None:
    """Set an element of a tensor of BF16 or F32."""
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    (size,) = struct.unpack("<Q", content[:8])
    entry = json.loads(content[8 : 8 + size])[tensor]
    begin, end = (8 + size + offset for offset in entry["data_offsets"])
    element = {"F32": struct.pack("<f", float(value)), "BF16": struct.pack("<H", BF16_BITS[value])}[entry["dtype"]]
    at = range(begin, end, len(element))[place]
    content[at : at + len(element)] = element
    path.write_bytes(content)


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize(
    "tensor",
    [
        f"{LAYER}.0.linear_attn.A_log",
        f"{LAYER}.0.linear_attn.dt_bias",
        f"{LAYER}.1.linear_attn.conv1d.weight",
        f"{LAYER}.3.self_attn.q_norm.weight",
        f"{LAYER}.2.input_layernorm.weight",
    ],
)
def test_vectors_are_refused_at_loading(model: Path, tensor: str, value: str) -> None:
    damage(model, tensor, value)
    with pytest.raises(CheckpointError, match=rf"NaN or infinity .*found -?{value} at place 2") as caught:
        Engine(model, max_context=256, memory_limit="1GiB")
    assert caught.value.tensor == tensor


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize(
    "module",
    [
        f"{LAYER}.0.linear_attn.in_proj_qkv",
        f"{LAYER}.0.linear_attn.in_proj_a",
        f"{LAYER}.1.mlp.gate",
        f"{LAYER}.1.mlp.shared_expert_gate",
        f"{LAYER}.2.mlp.shared_expert.down_proj",
        f"{LAYER}.3.self_attn.k_proj",
        "language_model.lm_head",
    ],
)
@pytest.mark.parametrize("kind", ["scales", "biases"])
@pytest.mark.parametrize(("dtype", "place"), [("float16", 2), ("float16", -1), ("float32", -1)])
def test_matrices_end_the_request(model: Path, module: str, kind: str, value: str, dtype: str, place: int) -> None:
    """Of mlp.gate too, whose last row is an expert that not every token chooses."""
    damage(model, f"{module}.{kind}", value, place)
    with Engine(model, max_context=256, memory_limit="1GiB", dtype=dtype) as engine:
        for _ in range(2):
            with pytest.raises(DeviceError, match="NaN or infinity") as caught:
                engine.generate("The kernel is", max_tokens=4, temperature=0, ignore_eos=True)
            assert caught.value.code == "nan"


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("module", [f"{LAYER}.0.linear_attn.in_proj_a", f"{LAYER}.1.mlp.gate"])
def test_matrices_end_the_request_on_metal(model: Path, module: str, value: str) -> None:
    require_metal()
    damage(model, f"{module}.biases", value, -1)
    with Engine(model, device="metal", max_context=256, memory_limit="1GiB") as engine:
        with pytest.raises(DeviceError, match="NaN or infinity") as caught:
            engine.generate("The kernel is", max_tokens=4, temperature=0, ignore_eos=True)
        assert caught.value.code == "nan"
