"""The bytes that a decode step cannot avoid reading (docs/design/model.md, section 5)."""

from __future__ import annotations

import re
from typing import Final

from .config import GROUP_SIZE, ModelConfig

_PAIR_BYTES: Final = 4  # scale and bias of a group, BF16
_SMALL_BYTES: Final = 2  # per value of a tensor that is not quantised, BF16
_STATE_BYTES: Final = 4


def decode_bytes(config: ModelConfig, context: int, kv_bytes_per_token: int) -> int:
    """Bytes read by one step of one timeline with `context` tokens: weights, recurrent state (read and written), KV."""
    return weight_bytes(config) + 2 * recurrent_state_bytes(config) + context * kv_bytes_per_token


def recurrent_state_bytes(config: ModelConfig) -> int:
    layers = config.layer_types.count("linear_attention")
    heads, dk, dv = config.linear_num_value_heads, config.linear_key_head_dim, config.linear_value_head_dim
    return layers * heads * dk * dv * _STATE_BYTES


def weight_bytes(config: ModelConfig) -> int:
    """Bytes of the weights that one token reads: everything but the embedding and the experts that are not chosen."""
    c = config
    key_dim = c.linear_num_key_heads * c.linear_key_head_dim
    value_dim = c.linear_num_value_heads * c.linear_value_head_dim
    channels = 2 * key_dim + value_dim
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    expert, shared = 3 * c.moe_intermediate_size, 3 * c.shared_expert_intermediate_size
    total = _matrix_bytes(c, "lm_head", c.vocab_size) + c.hidden_size * _SMALL_BYTES
    for layer, layer_type in enumerate(c.layer_types):
        at = f"model.layers.{layer}"
        small = 2 * c.hidden_size
        if layer_type == "linear_attention":
            total += _matrix_bytes(c, f"{at}.linear_attn.in_proj_qkv", channels + value_dim)
            total += _matrix_bytes(c, f"{at}.linear_attn.in_proj_a", 2 * c.linear_num_value_heads)
            total += _matrix_bytes(c, f"{at}.linear_attn.out_proj", value_dim)
            small += channels * c.linear_conv_kernel_dim + 2 * c.linear_num_value_heads + c.linear_value_head_dim
        else:
            total += _matrix_bytes(c, f"{at}.self_attn.q_proj", 2 * q + 2 * kv)
            total += _matrix_bytes(c, f"{at}.self_attn.o_proj", q)
            small += 2 * c.head_dim
        total += c.num_experts_per_tok * _matrix_bytes(c, f"{at}.mlp.switch_mlp.up_proj", expert)
        total += _matrix_bytes(c, f"{at}.mlp.shared_expert.up_proj", shared)
        total += _matrix_bytes(c, f"{at}.mlp.shared_expert_gate", 1) + _matrix_bytes(c, f"{at}.mlp.gate", c.num_experts)
        total += small * _SMALL_BYTES
    return total


def _matrix_bytes(config: ModelConfig, module: str, rows: int) -> int:
    """Of `rows` rows of hidden_size columns (or columns of as many rows), in the bits of `module`."""
    bits = next(
        (bits for name, bits in config.quantization.items() if re.sub(r"^language_model\.", "", name) == module),
        config.quantization[""],
    )
    values = rows * config.hidden_size
    return values * bits // 8 + values // GROUP_SIZE * _PAIR_BYTES
