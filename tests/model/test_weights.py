"""Whole checkpoints: every matrix and vector arrives in the order and the exact values that the model reads."""

import json
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lily import _core
from lily.config import load_config
from lily.errors import CheckpointError
from tests.oracles.forward import Checkpoint
from tools.make_checkpoint import make

Array = NDArray[np.float64]
Loaded = dict[str, tuple[str, list[NDArray[np.uint8]]]]


def load(folder: Path) -> tuple[Loaded, dict[str, int]]:
    return _core.load_weights(str(folder), _core.ModelConfig(**load_config(folder).core_arguments()))


def dequantise(
    codes: NDArray[Any], scales: NDArray[Any], biases: NDArray[Any], form: str, shape: tuple[int, ...]
) -> Array:
    def pairs(data: NDArray[Any]) -> Array:
        wide = data.view("<f4") if form.endswith("w") else (data.view("<u2").astype("<u4") << 16).view("<f4")
        return wide.astype(np.float64).reshape(*shape[:-1], shape[-1] // 64, 1)

    values = codes if form.startswith("q8") else np.stack([codes & 15, codes >> 4], -1)
    w = values.astype(np.float64).reshape(*shape[:-1], shape[-1] // 64, 64) * pairs(scales) + pairs(biases)
    return w.reshape(shape)


def delta_net_rows(ck: Checkpoint, name: str) -> list[Array]:
    """q, k, v · z · b · a of a layer, one row at a time by the formulas of the interleaved layout."""
    if f"{name}.in_proj_qkvz.weight" not in ck.index:
        return [ck.weight(f"{name}.in_proj_{part}") for part in ("qkv", "z", "b", "a")]
    c = ck.config
    Hk, Hv = c["linear_num_key_heads"], c["linear_num_value_heads"]
    dk, dv = c["linear_key_head_dim"], c["linear_value_head_dim"]
    qkvz, ba = ck.weight(f"{name}.in_proj_qkvz"), ck.weight(f"{name}.in_proj_ba")
    group = 2 * dk + 4 * dv  # two value heads per key head
    q = [group * h + e for h in range(Hk) for e in range(dk)]
    k = [row + dk for row in q]
    v = [group * (h // 2) + 2 * dk + dv * (h % 2) + e for h in range(Hv) for e in range(dv)]
    z = [row + 2 * dv for row in v]
    b = [4 * (h // 2) + h % 2 for h in range(Hv)]
    return [qkvz[q + k + v], qkvz[z], ba[b], ba[[row + 2 for row in b]]]


def expected_weights(ck: Checkpoint) -> dict[str, list[Array]]:
    """Name -> the matrix, or gate and up, or the vector."""
    c = ck.config
    Hq, D = c["num_attention_heads"], c["head_dim"]
    out: dict[str, list[Array]] = {
        "embed_tokens": [ck.weight(f"{ck.root}embed_tokens")],
        "norm": [ck.vector(f"{ck.root}norm.weight")],
        "lm_head": [ck.weight(ck.head)],
    }
    for i, kind in enumerate(ck.layer_types):
        p, mlp = f"{ck.root}layers.{i}", f"{ck.root}layers.{i}.mlp"
        layer: dict[str, list[Array]] = {"input_norm": [ck.vector(f"{p}.input_layernorm.weight")]}
        if kind == "full_attention":
            a = f"{p}.self_attn"
            q = ck.weight(f"{a}.q_proj").reshape(Hq, 2, D, -1)
            k, v = ck.weight(f"{a}.k_proj"), ck.weight(f"{a}.v_proj")
            layer["attn_in"] = [np.concatenate([q[:, 0].reshape(Hq * D, -1), q[:, 1].reshape(Hq * D, -1), k, v])]
            layer["attn_out"] = [ck.weight(f"{a}.o_proj")]
            layer |= {name: [ck.vector(f"{a}.{name}.weight")] for name in ("q_norm", "k_norm")}
        else:
            a = f"{p}.linear_attn"
            layer["gdn_in"] = [np.concatenate(delta_net_rows(ck, a))]
            layer["gdn_out"] = [ck.weight(f"{a}.out_proj")]
            layer |= {name: [ck.vector(f"{a}.{name}")] for name in ("A_log", "dt_bias")}
            layer |= {"conv1d": [ck.vector(f"{a}.conv1d.weight")], "norm": [ck.vector(f"{a}.norm.weight")]}
        layer |= {
            "moe.norm": [ck.vector(f"{p}.post_attention_layernorm.weight")],
            "moe.router": [np.concatenate([ck.weight(f"{mlp}.gate"), ck.weight(f"{mlp}.shared_expert_gate")])],
            "moe.experts_up": [ck.weight(f"{mlp}.switch_mlp.{n}_proj") for n in ("gate", "up")],
            "moe.experts_down": [ck.weight(f"{mlp}.switch_mlp.down_proj")],
            "moe.shared_up": [ck.weight(f"{mlp}.shared_expert.{n}_proj") for n in ("gate", "up")],
            "moe.shared_down": [ck.weight(f"{mlp}.shared_expert.down_proj")],
        }
        out |= {f"layers.{i}.{name}": value for name, value in layer.items()}
    return out


def check_values(folder: Path) -> tuple[Loaded, dict[str, int]]:
    loaded, report = load(folder)
    expected = expected_weights(Checkpoint(folder))
    assert loaded.keys() == expected.keys()
    for name, (form, ranges) in loaded.items():
        if form == "f32":
            np.testing.assert_array_equal(ranges[0].view("<f4"), expected[name][0].ravel(), err_msg=name)
            continue
        assert len(ranges) == 3 * len(expected[name])
        for i, matrix in enumerate(expected[name]):
            got = dequantise(*ranges[3 * i : 3 * i + 3], form, matrix.shape)
            np.testing.assert_array_equal(got, matrix, err_msg=name)
    return loaded, report


def size_of_weights(loaded: Loaded) -> int:
    return sum(data.nbytes for _, ranges in loaded.values() for data in ranges)


@pytest.mark.parametrize("model", ["qwen3_5_moe", "qwen3_next"])
@pytest.mark.parametrize("size", ["nano", "tiny"])
def test_unaligned_file_is_copied(tmp_path: Path, model: str, size: str) -> None:
    loaded, report = check_values(make(tmp_path, model, size=size))
    assert report["mapped_bytes"] == 0
    assert report["copied_bytes"] == size_of_weights(loaded)
    assert report["skipped_bytes"] == (8 if model == "qwen3_5_moe" else 0)
    assert {form for form, _ in loaded.values()} == {"f32", "q4g64", "q8g64"}


@pytest.mark.parametrize("model", ["qwen3_5_moe", "qwen3_next"])
def test_aligned_file_is_mapped_where_it_can_be(tmp_path: Path, model: str) -> None:
    loaded, report = check_values(make(tmp_path, model, aligned=True))
    stacked = ("gdn_in", "attn_in", "moe.router")
    copied = sum(
        data.nbytes
        for name, (form, ranges) in loaded.items()
        for data in ranges
        if form == "f32" or name.endswith(stacked)
    )
    assert report["copied_bytes"] == copied
    assert report["mapped_bytes"] == size_of_weights(loaded) - copied


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(
    ("bits", "dtypes", "forms"),
    [
        ({"*": 8, "*.switch_mlp.*": 4}, {}, {"lm_head": "q8g64", "layers.0.moe.experts_up": "q4g64"}),
        ({"*.in_proj_z": 8, "*.up_proj": 8}, {}, {"layers.0.gdn_in": "q8g64", "layers.0.moe.experts_up": "q8g64"}),
        ({}, {"*": "F16"}, {"lm_head": "q4g64w", "layers.0.gdn_in": "q4g64w"}),
        ({}, {"*": "F32"}, {"lm_head": "q4g64w", "layers.0.moe.router": "q8g64w"}),
        (
            {},
            {"*.k_proj": "F32", "*.up_proj": "F16"},
            {"layers.3.attn_in": "q4g64w", "layers.0.moe.shared_up": "q4g64w"},
        ),
        ({"*.v_proj": 8}, {"*.q_proj": "F16"}, {"layers.3.attn_in": "q8g64w", "layers.3.attn_out": "q4g64"}),
    ],
)
def test_other_widths(
    tmp_path: Path, bits: Mapping[str, int], dtypes: Mapping[str, str], forms: Mapping[str, str], aligned: bool
) -> None:
    loaded, _ = check_values(make(tmp_path, bits=bits, dtypes=dtypes, aligned=aligned))
    assert {name: loaded[name][0] for name in forms} == forms


def test_shards_and_progress(tmp_path: Path) -> None:
    folder = make(tmp_path, shards=3)
    shutil.copy(folder / "model-00001-of-00003.safetensors", folder / "model-old.safetensors")  # not in the index
    (folder / "mtp.safetensors").write_bytes(b"not read")
    _, report = check_values(folder)
    assert (report["num_files"], report["has_mtp"]) == (3, True)
    calls: list[tuple[int, int]] = []
    _core.load_weights(
        str(folder),
        _core.ModelConfig(**load_config(folder).core_arguments()),
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls[0][0] == 0 and calls[-1][0] == calls[-1][1] > 0
    assert calls == sorted(calls)


def edit_tensors(path: Path, edit: Any) -> None:
    """Rewrites a file after `edit(header)`; a tensor that the edit adds must use the bytes of one that it removes."""
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    edit(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


def refused(folder: Path, match: str) -> CheckpointError:
    with pytest.raises(CheckpointError, match=match) as caught:
        load(folder)
    return caught.value


@pytest.mark.parametrize("model", ["qwen3_5_moe", "qwen3_next"])
def test_hugging_face_layout(tmp_path: Path, model: str) -> None:
    config = load_config(make(tmp_path / "mlx", model)).core_arguments()
    folder = make(tmp_path / "hf", model, "hf")
    command = f"mlx_lm.convert --hf-path {folder} -q --q-bits 4 --q-group-size 64"
    with pytest.raises(CheckpointError, match=command):
        _core.load_weights(str(folder), _core.ModelConfig(**config))
    with pytest.raises(CheckpointError, match=command) as caught:
        load_config(folder)
    assert caught.value.field == "quantization"


def test_conv1d_tells_the_layout(tmp_path: Path) -> None:
    folder = make(tmp_path)

    def edit(header: dict[str, Any]) -> None:
        header["language_model.model.layers.1.linear_attn.conv1d.weight"]["shape"] = [512, 1, 4]

    edit_tensors(folder / "model.safetensors", edit)
    assert refused(folder, "Hugging Face layout").tensor == "language_model.model.layers.1.linear_attn.conv1d.weight"


ATTENTION = "language_model.model.layers.3.self_attn"


def rename(old: str, new: str) -> Any:
    return lambda header: header.update({new: header.pop(old)})


@pytest.mark.parametrize(
    ("edit", "tensor", "match"),
    [
        (rename(f"{ATTENTION}.q_norm.weight", "extra"), f"{ATTENTION}.q_norm.weight", "does not have this tensor"),
        (rename("vision_tower.patch_embed.proj.bias", "extra"), "extra", "1 tensor is not part of the model: extra"),
        (rename(f"{ATTENTION}.k_proj.scales", "extra"), f"{ATTENTION}.k_proj.weight", "not quantised.*mlx_lm.convert"),
        (
            lambda header: header[f"{ATTENTION}.k_norm.weight"].update(shape=[2, 32]),
            f"{ATTENTION}.k_norm.weight",
            r"expected \[64\], found \[2, 32\]",
        ),
        (
            lambda header: header[f"{ATTENTION}.v_proj.scales"].update(dtype="I16"),
            f"{ATTENTION}.v_proj.scales",
            "expected BF16 or F16 or F32, found I16",
        ),
        (
            lambda header: header[f"{ATTENTION}.v_proj.weight"].update(dtype="I32"),
            f"{ATTENTION}.v_proj.weight",
            "expected U32, found I32",
        ),
    ],
)
def test_wrong_tensors(tmp_path: Path, edit: Any, tensor: str, match: str) -> None:
    folder = make(tmp_path)
    edit_tensors(folder / "model.safetensors", edit)
    assert refused(folder, match).tensor == tensor


def test_bits_must_match_the_shape(tmp_path: Path) -> None:
    folder = make(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["quantization"]["language_model.lm_head"] = {"group_size": 64, "bits": 8}
    (folder / "config.json").write_text(json.dumps(config))
    assert refused(folder, r"expected \[512, 16\], found \[512, 8\]").tensor == "language_model.lm_head.weight"


def edit_index(folder: Path, edit: Any) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    edit(index)
    path.write_text(json.dumps(index))


SHARD = "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("edit", "match"),
    [
        (lambda index: index.pop("weight_map"), "no weight_map"),
        (lambda index: index.update(weight_map={}), "names no file"),
        (lambda index: index["weight_map"].update(ghost=SHARD), "tensor ghost: .*not in the file.*found in no file"),
        (lambda index: index["weight_map"].update(ghost="model-3.safetensors"), r"model-3\.safetensors: .*missing"),
        (lambda index: index["weight_map"].update(ghost="../x.safetensors"), "outside its folder"),
        (lambda index: index["weight_map"].update(ghost="/dev/zero"), "outside its folder"),
        (lambda index: index["weight_map"].update(ghost=".."), "outside its folder"),
        (lambda index: index["weight_map"].update(ghost=""), "outside its folder"),
        (lambda index: index["weight_map"].update(ghost=SHARD + "\0x"), "outside its folder"),
        (lambda index: index["weight_map"].pop(f"{ATTENTION}.q_norm.weight"), "q_norm.weight: the index does not name"),
        (lambda index: index["weight_map"].update({"language_model.model.norm.weight": SHARD[:-1]}), "missing"),
        (lambda index: index.update(metadata=[[[[{"deep": [1.5e3, -0.0, True, None]}]]]]), None),
    ],
)
def test_index(tmp_path: Path, edit: Any, match: str | None) -> None:
    folder = make(tmp_path, shards=2)
    edit_index(folder, edit)
    if match is None:
        check_values(folder)
    else:
        refused(folder, match)


def test_hostile_index(tmp_path: Path) -> None:
    folder = make(tmp_path, shards=2)
    index = folder / "model.safetensors.index.json"
    index.write_bytes(b'{"metadata":' + b"[" * 1_000_000)
    refused(folder, "nested deeper than")
    index.write_bytes(b"")
    refused(folder, "'{' is missing")
    index.unlink()
    index.symlink_to("none")  # not as if there were no index
    refused(folder, "No such file")


def test_missing_and_doubled_files(tmp_path: Path) -> None:
    folder = make(tmp_path, shards=2)
    (folder / "model.safetensors.index.json").unlink()
    check_values(folder)  # all model*.safetensors
    shutil.copy(folder / SHARD, folder / "model-copy.safetensors")
    refused(folder, "in two files")
    for path in folder.glob("*.safetensors"):
        path.unlink()
    refused(folder, "no weights")
