"""config.json and the files beside it: what is accepted, and the message for each field that is not."""

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lily.config import load_config
from lily.errors import CheckpointError
from tools.make_checkpoint import DEFAULT_BITS, SIZES, config_of

MODELS = ("qwen3_5_moe", "qwen3_next")
DELETE = object()

# The sizes of the published models, as their config.json spells them.
REAL = {
    "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
}  # fmt: skip


def config_json(model: str) -> dict[str, Any]:
    """A config.json with quantization, as the MLX conversion of `model` has it."""
    module = "language_model.model.layers.0.mlp.gate" if model == "qwen3_5_moe" else "model.layers.0.mlp.gate"
    rules = {"group_size": 64, "bits": DEFAULT_BITS["*"], "mode": "affine", module: {"group_size": 64, "bits": 8}}
    return {
        **config_of(model, SIZES["nano"]),
        "quantization": rules,
        "quantization_config": json.loads(json.dumps(rules)),
    }


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    text: dict[str, Any] = config.get("text_config", config)
    return text


def put(config: dict[str, Any], field: str, value: Any) -> None:
    """Sets a dotted field, or deletes it."""
    *sections, name = field.split(".")
    for section in sections:
        config = config[section]
    if value is DELETE:
        del config[name]
    else:
        config[name] = value


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the JSON files of a folder: config, and generation_config, tokenizer_config, tokenizer where given."""

    def write(config: Any, **others: Any) -> Path:
        for name, value in {"config": config, **others}.items():
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            (tmp_path / f"{name}.json").write_bytes(content)
        return tmp_path

    return write


def refused(folder: Path, field: str) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        load_config(folder)
    error = caught.value
    assert error.field == field
    assert error.path is not None and error.path in str(error) and field in str(error)
    assert error.expected and error.found and error.expected in str(error) and error.found in str(error)
    return error


@pytest.mark.parametrize("model", MODELS)
def test_both_families(write: Write, model: str) -> None:
    config = load_config(write(config_json(model)))
    assert (config.model_type, config.hidden_size, config.num_hidden_layers, config.vocab_size) == (model, 64, 4, 512)
    assert config.layer_types == ("linear_attention",) * 3 + ("full_attention",)
    assert (config.rope_theta, config.partial_rotary_factor, config.rotary_dim) == (1e7, 0.25, 16)
    assert (config.max_position_embeddings, config.stop_token_ids, dict(config.sampling_defaults)) == (
        262144,
        (510,),
        {},
    )
    with pytest.raises(AttributeError):
        config.hidden_size = 1  # type: ignore[misc]
    arguments = config.core_arguments()
    assert arguments["family"] == model
    assert arguments["quantization"][""] == 4 and list(arguments["quantization"].values()) == [4, 8]
    assert arguments["sizes"]["num_linear_layers"] == 3 and arguments["sizes"]["num_attention_layers"] == 1
    assert arguments["sizes"]["rotary_dim"] == 16


@pytest.mark.parametrize(
    ("model", "layers", "vocab", "experts", "top_k", "theta"),
    [
        ("qwen3_5_moe", 40, 248320, 256, 8, 10_000_000),
        ("qwen3_next", 48, 151936, 512, 10, 10_000_000),
        ("qwen3_next", 48, 151936, 512, 10, 5_000_000),
    ],
)
def test_published_sizes(
    write: Write, model: str, layers: int, vocab: int, experts: int, top_k: int, theta: int
) -> None:
    config = config_json(model)
    text = text_of(config)
    text |= REAL | {
        "num_hidden_layers": layers,
        "vocab_size": vocab,
        "num_experts": experts,
        "num_experts_per_tok": top_k,
    }
    text.pop("layer_types", None)
    text.get("rope_parameters", text)["rope_theta"] = theta
    loaded = load_config(write(config))
    assert loaded.layer_types.count("full_attention") == layers // 4
    assert (loaded.rotary_dim, loaded.rope_theta) == (64, theta)


def test_lily_nano(lily_nano: Path) -> None:
    config = load_config(lily_nano)
    assert config.stop_token_ids == (4072, 4070)
    assert config.sampling_defaults == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}


WRONG_IN_TEXT = [
    *[(name, value) for name in REAL for value in (0, -64, 64.0, "64", True, None, DELETE, 2**31, [64])],
    *[(name, 96) for name in ("hidden_size", "head_dim", "moe_intermediate_size", "shared_expert_intermediate_size")],
    *[(name, 96) for name in ("linear_key_head_dim", "linear_value_head_dim")],
    *[
        (name, value)
        for name in ("num_hidden_layers", "vocab_size", "num_experts", "num_experts_per_tok", "linear_conv_kernel_dim")
        for value in (0, 1.0, "4", False, DELETE)
    ],
    ("num_hidden_layers", 1025),
    ("num_hidden_layers", 2**24),
    ("num_key_value_heads", 3),
    ("linear_num_value_heads", 2),
    ("linear_num_value_heads", 8),
    ("linear_value_head_dim", 128),
    ("linear_conv_kernel_dim", 3),
    ("num_experts_per_tok", 9),
    ("rms_norm_eps", 0),
    ("rms_norm_eps", "1e-6"),
    ("rms_norm_eps", DELETE),
    ("rms_norm_eps", 10**400),
    ("tie_word_embeddings", True),
    ("tie_word_embeddings", 0),
    ("hidden_act", "gelu"),
    ("attention_bias", True),
    ("attn_output_gate", False),
    ("use_sliding_window", True),
    ("decoder_sparse_step", 2),
    ("mlp_only_layers", [0]),
    ("norm_topk_prob", False),
    ("norm_topk_prob", 1),
    ("max_position_embeddings", -1),
    ("max_position_embeddings", "262144"),
    ("layer_types", ["full_attention"]),
    ("layer_types", ["linear_attention"] * 4),
    ("layer_types", ["full_attention"] * 4),
    ("num_attention_heads", 2**22),
    ("linear_num_value_heads", 2**22),
    ("layer_types", ["full_attention"] * 3 + ["sliding_attention"]),
    ("layer_types", "full_attention"),
    ("eos_token_id", 512),
    ("eos_token_id", -1),
    ("eos_token_id", [1, "2"]),
    ("eos_token_id", True),
]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("name", "value"), WRONG_IN_TEXT)
def test_wrong_sizes_and_switches(write: Write, model: str, name: str, value: Any) -> None:
    config = config_json(model)
    field = f"text_config.{name}" if model == "qwen3_5_moe" else name
    put(config, field, value)
    refused(write(config), field)


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [
        ("qwen3_5_moe", "model_type", "qwen3_moe"),
        ("qwen3_5_moe", "model_type", DELETE),
        ("qwen3_5_moe", "text_config", DELETE),
        ("qwen3_5_moe", "text_config", []),
        ("qwen3_5_moe", "text_config.model_type", "qwen3_next"),
        ("qwen3_5_moe", "tie_word_embeddings", True),
        ("qwen3_5_moe", "text_config.rope_parameters.rope_type", "yarn"),
        ("qwen3_5_moe", "text_config.rope_parameters.type", "linear"),
        ("qwen3_5_moe", "text_config.rope_parameters.factor", 4.0),
        ("qwen3_5_moe", "text_config.rope_parameters.rope_theta", 0),
        ("qwen3_5_moe", "text_config.rope_parameters.rope_theta", "1e7"),
        ("qwen3_5_moe", "text_config.rope_parameters", "default"),
        ("qwen3_next", "norm_topk_prob", DELETE),
        ("qwen3_next", "rope_theta", DELETE),
        ("qwen3_next", "rope_scaling", {"type": "yarn", "factor": 4.0}),
        ("qwen3_next", "rope_scaling", 4.0),
        ("qwen3_next", "partial_rotary_factor", 0.3),
        ("qwen3_next", "partial_rotary_factor", 2.0),
        ("qwen3_next", "partial_rotary_factor", -0.25),
    ],
)
def test_wrong_structure(write: Write, model: str, field: str, value: Any) -> None:
    config = config_json(model)
    put(config, field, value)
    with pytest.raises(CheckpointError) as caught:
        load_config(write(config))
    assert caught.value.field is not None and caught.value.field.startswith(field)


@pytest.mark.parametrize("name", ["rope_theta", "partial_rotary_factor"])
def test_rope_twins_must_agree(write: Write, name: str) -> None:
    config = config_json("qwen3_5_moe")
    config["text_config"][name] = config["text_config"]["rope_parameters"][name]
    load_config(write(config))
    config["text_config"][name] = 0.5
    refused(write(config), f"text_config.rope_parameters.{name}")


def test_accepted_variants(write: Write) -> None:
    config = config_json("qwen3_5_moe")
    rope = config["text_config"]["rope_parameters"]
    rope["type"] = rope.pop("rope_type")  # as MLX conversions write it
    for name in ("layer_types", "attn_output_gate", "max_position_embeddings"):
        del config["text_config"][name]
    loaded = load_config(write(config))
    assert loaded.layer_types == ("linear_attention",) * 3 + ("full_attention",)
    assert loaded.max_position_embeddings is None
    config["text_config"] |= {"max_position_embeddings": 0, "full_attention_interval": 2}
    loaded = load_config(write(config))
    assert loaded.layer_types == ("linear_attention", "full_attention") * 2
    assert loaded.max_position_embeddings is None

    flat = config_json("qwen3_next")  # newer files have rope_parameters here too
    flat["rope_parameters"] = {name: flat.pop(name) for name in ("rope_theta", "partial_rotary_factor")}
    assert load_config(write(flat)).rope_theta == 1e7


GATE = "language_model.model.layers.0.mlp.gate"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bits", 6), ("bits", 4.0), ("bits", "4"), ("bits", DELETE),
        ("group_size", 32), ("group_size", 128), ("group_size", DELETE),
        ("mode", "mxfp4"),
        (f"{GATE}.bits", 3), (f"{GATE}.bits", True), (f"{GATE}.group_size", 32), (f"{GATE}.mode", "nvfp4"),
        (GATE, False), (GATE, 8), ("scale_bits", 8), ("quant_method", "fp8"),
    ],
)  # fmt: skip
def test_wrong_quantization(write: Write, field: str, value: Any) -> None:
    config = config_json("qwen3_5_moe")
    del config["quantization_config"]
    section = config["quantization"]
    name = field
    if field.startswith(GATE + "."):
        section, name = section[GATE], field.removeprefix(GATE + ".")
    put(section, name, value) if "." not in name else section.update({name: value})
    error = refused(write(config), f"quantization.{field}")
    if name not in (GATE, "scale_bits"):
        assert "mlx_lm.convert --hf-path FOLDER -q --q-bits 4 --q-group-size 64" in str(error)


def test_quantization_twins(write: Write) -> None:
    config = config_json("qwen3_5_moe")
    config["quantization_config"]["bits"] = 8
    refused(write(config), "quantization_config")
    del config["quantization"]
    assert load_config(write(config)).quantization[""] == 8
    del config["quantization_config"]
    error = refused(write(config), "quantization")
    assert "mlx_lm.convert --hf-path " in str(error)


def test_vision_modules_are_not_checked(write: Write) -> None:
    config = config_json("qwen3_5_moe")
    for name in ("quantization", "quantization_config"):
        config[name]["vision_tower.merger"] = {"group_size": 32, "bits": 6}
    assert "vision_tower.merger" not in load_config(write(config)).quantization


def test_stop_ids_are_a_union(write: Write) -> None:
    config = config_json("qwen3_5_moe") | {"eos_token_id": [500, 501]}
    tokenizer = {"eos_token": "<|im_end|>", "added_tokens_decoder": {"502": {"content": "<|im_end|>"}}}
    folder = write(config, generation_config={"eos_token_id": [501, 499]}, tokenizer_config=tokenizer)
    assert load_config(folder).stop_token_ids == (501, 499, 500, 510, 502)
    del tokenizer["added_tokens_decoder"]
    refused(write(config, tokenizer_config=tokenizer), "eos_token")
    folder = write(
        config, tokenizer={"added_tokens": [{"id": 7, "content": "x"}, {"id": 503, "content": "<|im_end|>"}]}
    )
    assert 503 in load_config(folder).stop_token_ids
    folder = write(config, tokenizer_config={"eos_token": {"content": "x"}})
    assert 7 in load_config(folder).stop_token_ids


def test_no_stop_id_at_all(write: Write) -> None:
    config = config_json("qwen3_next")
    del config["eos_token_id"]
    refused(write(config), "eos_token_id")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1), ("temperature", "0.6"), ("top_p", 1.5), ("min_p", -1), ("top_k", 20.0), ("top_k", -2),
        ("top_k", True), ("repetition_penalty", []), ("repetition_penalty", 0), ("top_p", 0),
        ("presence_penalty", 3), ("do_sample", 1), ("eos_token_id", 512), ("temperature", 10**400),
    ],
)  # fmt: skip
def test_wrong_generation_config(write: Write, name: str, value: Any) -> None:
    error = refused(write(config_json("qwen3_next"), generation_config={name: value}), name)
    assert error.path is not None and error.path.endswith("generation_config.json")


def test_generation_defaults(write: Write) -> None:
    given = {"do_sample": False, "temperature": 0.6, "top_k": None, "presence_penalty": -1.5, "max_length": 20}
    folder = write(config_json("qwen3_next"), generation_config=given)
    assert load_config(folder).sampling_defaults == {"temperature": 0.0, "presence_penalty": -1.5}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff{}", b"[" * 100_000, b"1" * 5000, b'"text"'])
@pytest.mark.parametrize("name", ["config", "generation_config", "tokenizer_config"])
def test_files_that_are_no_object(write: Write, name: str, content: bytes) -> None:
    folder = write(config_json("qwen3_next"), **({name: content} if name != "config" else {}))
    if name == "config":
        folder = write(content)
    with pytest.raises(CheckpointError, match=rf"/{name}\.json") as caught:
        load_config(folder)
    assert caught.value.path == str(folder / f"{name}.json")


def test_missing_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        load_config(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_config(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_files_that_cannot_be_read(
    write: Write, name: str, as_nobody: Callable[[], AbstractContextManager[None]]
) -> None:
    folder = write(config_json(MODELS[0]), generation_config={}, tokenizer_config={})
    path = folder / name
    path.chmod(0)
    with as_nobody(), pytest.raises(CheckpointError, match="Permission denied") as caught:
        load_config(folder)
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a hole: it takes no room on the disk
    with pytest.raises(CheckpointError, match="too many"):
        load_config(folder)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CheckpointError, match="not a regular file"):
        load_config(folder)
    path.unlink()
    path.symlink_to("blobs/none")
    with pytest.raises(CheckpointError, match="link to a file that does not exist"):
        load_config(folder)
    path.unlink()
    path.symlink_to(name)
    with pytest.raises(CheckpointError, match="symbolic links"):
        load_config(folder)
    assert caught.value.path is not None


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["default", "affine"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=st.sampled_from(MODELS), value=JSON, data=st.data())
def test_any_value_anywhere(write: Write, model: str, value: Any, data: st.DataObject) -> None:
    """Whatever stands in a field, the answer is a configuration or a CheckpointError."""
    config = config_json(model)
    sections = [config, text_of(config), text_of(config).get("rope_parameters", config), config["quantization"]]
    section = data.draw(st.sampled_from(sections))
    section[data.draw(st.sampled_from(sorted(section)))] = value
    try:
        loaded = load_config(write(config))
    except CheckpointError as error:
        assert error.field
    else:
        assert loaded.core_arguments()["sizes"]["hidden_size"] == loaded.hidden_size
