"""The configuration of a checkpoint: read from its JSON files and checked before any weight is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypedDict, cast, get_args

from .errors import CheckpointError
from .fields import MAX_SIZE, Fields, is_int, read_fields
from .generation_config import sampling_defaults, stop_token_ids

LayerType = Literal["linear_attention", "full_attention"]

GROUP_SIZE = 64
MAX_LAYERS = 1024  # of models that anybody made, the largest have a tenth of it
FAMILIES = {"qwen3_5_moe": "qwen3_5_moe_text", "qwen3_next": "qwen3_next"}  # model_type -> that of the sizes
QUANTIZATION = f"affine, 4 or 8 bits, group_size {GROUP_SIZE}"


def convert_command(folder: str | Path) -> str:
    """The command that makes a checkpoint which lily reads, from a folder of original weights."""
    return f"mlx_lm.convert --hf-path {folder} -q --q-bits 4 --q-group-size 64"


CONVERT_AGAIN = f"Convert the original weights again: {convert_command('FOLDER')}"


class CoreArguments(TypedDict):
    """Keyword arguments of `_core.ModelConfig`."""

    family: str
    layer_types: tuple[LayerType, ...]
    sizes: dict[str, int]
    rms_norm_eps: float
    rope_theta: float
    quantization: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What a model is made of, under the names of its config.json. `engine.config` is one.

    Sizes count elements, heads, experts, layers or tokens. `layer_types` has one entry per layer.
    `max_position_embeddings` is the longest context that the model was made for, in tokens; None when the checkpoint
    does not say. `quantization` maps module paths to bits per weight, and "" to those of the modules not named.
    `stop_token_ids` end a generation. `sampling_defaults` holds what generation_config.json sets of temperature, top_p,
    top_k, min_p and the three penalties; `do_sample: false` is temperature 0.
    """

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    layer_types: tuple[LayerType, ...]
    vocab_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    partial_rotary_factor: float
    rope_theta: float
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    rms_norm_eps: float
    max_position_embeddings: int | None
    quantization: Mapping[str, int]
    stop_token_ids: tuple[int, ...]
    sampling_defaults: Mapping[str, float | int]

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that rotate: head_dim * partial_rotary_factor."""
        return round(self.head_dim * self.partial_rotary_factor)

    def core_arguments(self) -> CoreArguments:
        """Keyword arguments of `_core.ModelConfig`; the sizes bear the names of `ModelConstants` in lily_args.h."""
        same_names = (
            *("hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim", "rotary_dim"),
            *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
            *("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size"),
        )
        return {
            "family": self.model_type,
            "layer_types": self.layer_types,
            "sizes": {
                **{name: getattr(self, name) for name in same_names},
                "num_attention_layers": self.layer_types.count("full_attention"),
                "num_linear_layers": self.layer_types.count("linear_attention"),
            },
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "quantization": dict(self.quantization),
        }


def load_config(folder: str | Path) -> ModelConfig:
    """Reads config.json, and generation_config.json, tokenizer_config.json and tokenizer.json as far as they exist.

    Raises CheckpointError naming file and field, with what was expected and found, for anything outside the two model
    families or outside what lily computes exactly.
    """
    folder = Path(folder)
    top = read_fields(folder / "config.json")
    if top is None:
        raise CheckpointError(
            f"{folder}: the folder has no config.json", path=str(folder), expected="config.json", found="nothing"
        )
    top.require("model_type", *FAMILIES)
    if not top.has("model_type"):
        top.refuse("model_type", " or ".join(FAMILIES))
    model_type = cast(str, top.values["model_type"])
    text = top if model_type == "qwen3_next" else top.section("text_config")
    text.require("model_type", FAMILIES[model_type])

    _refuse_other_models(model_type, top, text)
    theta, rotary_factor = _rope(text)
    num_layers = text.size("num_hidden_layers", largest=MAX_LAYERS)
    config = ModelConfig(
        model_type=model_type,
        hidden_size=text.size("hidden_size", multiple_of=GROUP_SIZE),
        num_hidden_layers=num_layers,
        layer_types=_layer_types(text, num_layers),
        vocab_size=text.size("vocab_size"),
        num_attention_heads=text.size("num_attention_heads"),
        num_key_value_heads=text.size("num_key_value_heads"),
        head_dim=text.size("head_dim", multiple_of=GROUP_SIZE),
        partial_rotary_factor=rotary_factor,
        rope_theta=theta,
        linear_num_key_heads=text.size("linear_num_key_heads"),
        linear_num_value_heads=text.size("linear_num_value_heads"),
        linear_key_head_dim=text.size("linear_key_head_dim", multiple_of=GROUP_SIZE),
        linear_value_head_dim=text.size("linear_value_head_dim", multiple_of=GROUP_SIZE),
        linear_conv_kernel_dim=text.size("linear_conv_kernel_dim"),
        num_experts=text.size("num_experts"),
        num_experts_per_tok=text.size("num_experts_per_tok"),
        moe_intermediate_size=text.size("moe_intermediate_size", multiple_of=GROUP_SIZE),
        shared_expert_intermediate_size=text.size("shared_expert_intermediate_size", multiple_of=GROUP_SIZE),
        rms_norm_eps=text.positive("rms_norm_eps"),
        max_position_embeddings=_max_positions(text),
        quantization=MappingProxyType(_quantization(top)),
        stop_token_ids=stop_token_ids(folder, top, text),
        sampling_defaults=MappingProxyType(sampling_defaults(folder)),
    )
    _check_heads(text, config)
    return config


def _refuse_other_models(model_type: str, top: Fields, text: Fields) -> None:
    for fields in (top, text):
        fields.require("tie_word_embeddings", False)
    text.require("hidden_act", "silu")
    text.require("attention_bias", False)
    text.require("attn_output_gate", True)
    text.require("use_sliding_window", False)
    text.require("decoder_sparse_step", 1)
    text.require("mlp_only_layers", [])
    text.require("norm_topk_prob", True)
    if model_type == "qwen3_next" and not text.has("norm_topk_prob"):
        text.refuse("norm_topk_prob", "true", fix="Engines disagree on its default, so it must be there")


def _check_heads(text: Fields, c: ModelConfig) -> None:
    for heads, size in (
        ("num_attention_heads", c.head_dim),
        ("linear_num_value_heads", c.linear_key_head_dim),
        ("linear_num_value_heads", c.linear_value_head_dim),
    ):
        if getattr(c, heads) * size > MAX_SIZE // 4:
            text.refuse(heads, f"at most {MAX_SIZE // 4 // size} heads of {size} elements")
    for kind in get_args(LayerType):
        if kind not in c.layer_types:
            text.refuse("layer_types", f"at least one {kind} layer", found=f"none in {c.num_hidden_layers} layers")
    if c.num_attention_heads % c.num_key_value_heads:
        text.refuse("num_key_value_heads", f"a divisor of num_attention_heads, {c.num_attention_heads}")
    if c.linear_num_value_heads != 2 * c.linear_num_key_heads:
        text.refuse("linear_num_value_heads", f"2 * linear_num_key_heads, {2 * c.linear_num_key_heads}")
    if c.linear_value_head_dim != c.linear_key_head_dim:
        text.refuse("linear_value_head_dim", f"linear_key_head_dim, {c.linear_key_head_dim}")
    if c.linear_conv_kernel_dim != 4:
        text.refuse("linear_conv_kernel_dim", "4")
    if c.num_experts_per_tok > c.num_experts:
        text.refuse("num_experts_per_tok", f"at most num_experts, {c.num_experts}")
    rotary = c.head_dim * c.partial_rotary_factor
    if rotary != c.rotary_dim or c.rotary_dim % 2 or not 2 <= c.rotary_dim <= c.head_dim:
        # The factor may lie in rope_parameters, but its name is the same.
        found = f"{c.partial_rotary_factor} * {c.head_dim}"
        text.refuse("partial_rotary_factor", f"a factor that makes an even part of head_dim, {c.head_dim}", found=found)


def _layer_types(text: Fields, num_layers: int) -> tuple[LayerType, ...]:
    if not text.has("layer_types"):
        interval = text.size("full_attention_interval", 4)
        return tuple("linear_attention" if (i + 1) % interval else "full_attention" for i in range(num_layers))
    types = text.values["layer_types"]
    allowed = get_args(LayerType)
    if not isinstance(types, list) or len(types) != num_layers or not all(t in allowed for t in types):
        text.refuse("layer_types", f"a list of {num_layers} (num_hidden_layers) of {' or '.join(allowed)}")
    return tuple(types)


def _rope(text: Fields) -> tuple[float, float]:
    """(rope_theta, partial_rotary_factor), from `rope_parameters` in newer files, else from the fields beside it."""
    rope = text.section("rope_parameters") if text.has("rope_parameters") else text
    if text.has("rope_scaling"):
        _require_default_rope(text.section("rope_scaling"))
    if rope is not text:
        _require_default_rope(rope)
        for name in ("rope_theta", "partial_rotary_factor"):
            if rope.has(name) and text.has(name) and rope.positive(name) != text.positive(name):
                rope.refuse(name, f"the same as {text.prefix}{name}, {text.values[name]}")
    theta, factor = (rope if rope.has(name) else text for name in ("rope_theta", "partial_rotary_factor"))
    has_factor = factor.has("partial_rotary_factor")
    return theta.positive("rope_theta"), factor.positive("partial_rotary_factor") if has_factor else 0.25


def _require_default_rope(rope: Fields) -> None:
    for name in ("rope_type", "type"):  # MLX conversions rename the one to the other
        rope.require(name, "default")
    if rope.has("factor"):
        rope.refuse("factor", "nothing: scaled rope is not supported")


def _max_positions(text: Fields) -> int | None:
    """None when the file gives no limit: absent, null or 0."""
    value = text.values.get("max_position_embeddings")
    if value is None or (is_int(value) and value == 0):
        return None
    return text.size("max_position_embeddings")


def _quantization(top: Fields) -> dict[str, int]:
    """Bits by module path; "" holds those of the modules that the file does not name."""
    names = [name for name in ("quantization", "quantization_config") if top.has(name)]
    if not names:
        top.refuse("quantization", QUANTIZATION, fix=f"Convert the weights: {convert_command(top.path.parent)}")
    if len(names) == 2 and top.values[names[0]] != top.values[names[1]]:
        top.refuse(names[1], "the same as quantization", found="something else")
    rules = top.section(names[0])
    if rules.has("quant_method"):
        rules.refuse("quant_method", f"MLX weights, {QUANTIZATION}", fix=CONVERT_AGAIN)
    bits = {"": _bits(rules)}
    for name, rule in rules.values.items():
        if name in ("bits", "group_size", "mode") or name.startswith("vision_tower."):
            continue
        if not isinstance(rule, dict):
            rules.refuse(name, f"an object with {QUANTIZATION}")
        bits[name] = _bits(rules.section(name))
    return bits


def _bits(rule: Fields) -> int:
    for name, allowed in (("bits", (4, 8)), ("group_size", (GROUP_SIZE,))):
        value = rule.values.get(name)
        if not is_int(value) or value not in allowed:
            rule.refuse(name, " or ".join(map(str, allowed)), fix=CONVERT_AGAIN)
    if rule.values.get("mode", "affine") != "affine":
        rule.refuse("mode", '"affine"', fix=CONVERT_AGAIN)
    return cast(int, rule.values["bits"])
