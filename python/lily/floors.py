"""What cannot be avoided: bytes that a decode step reads, operations of a prefill (docs/design/model.md, section 5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
    channels = 2 * c.linear_num_key_heads * c.linear_key_head_dim + c.linear_num_value_heads * c.linear_value_head_dim
    small = c.hidden_size
    for layer_type in c.layer_types:
        small += 2 * c.hidden_size
        if layer_type == "linear_attention":
            small += channels * c.linear_conv_kernel_dim + 2 * c.linear_num_value_heads + c.linear_value_head_dim
        else:
            small += 2 * c.head_dim
    matrices = sum(_matrix_bytes(c, module, rows) for module, rows in _layer_matrices(c))
    return matrices + _matrix_bytes(c, "lm_head", c.vocab_size) + small * _SMALL_BYTES


def prefill_operations(config: ModelConfig, tokens: int) -> int:
    """Operations of a prompt of `tokens` tokens in products with weights, a multiplication and its addition being two.

    Projections, routers, shared experts and the chosen ones for each token, the output head for the last one. Not
    counted: the delta rule, attention's scores and weighted values, convolutions, norms.
    """
    rows = tokens * sum(rows for _, rows in _layer_matrices(config)) + config.vocab_size
    return 2 * rows * config.hidden_size


def _layer_matrices(config: ModelConfig) -> Iterator[tuple[str, int]]:
    """(module, rows) of the matrices in all layers that one token meets, of hidden_size columns each.

    Rows: or columns of as many rows. Modules: one of those that share their bits, with the rows of all of them.
    """
    c = config
    value_dim = c.linear_num_value_heads * c.linear_value_head_dim
    channels = 2 * c.linear_num_key_heads * c.linear_key_head_dim + value_dim
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    expert, shared = 3 * c.moe_intermediate_size, 3 * c.shared_expert_intermediate_size
    for layer, layer_type in enumerate(c.layer_types):
        at = f"model.layers.{layer}"
        if layer_type == "linear_attention":
            yield f"{at}.linear_attn.in_proj_qkv", channels + value_dim
            yield f"{at}.linear_attn.in_proj_a", 2 * c.linear_num_value_heads
            yield f"{at}.linear_attn.out_proj", value_dim
        else:
            yield f"{at}.self_attn.q_proj", 2 * q + 2 * kv
            yield f"{at}.self_attn.o_proj", q
        yield f"{at}.mlp.switch_mlp.up_proj", c.num_experts_per_tok * expert
        yield f"{at}.mlp.shared_expert.up_proj", shared
        yield f"{at}.mlp.shared_expert_gate", 1
        yield f"{at}.mlp.gate", c.num_experts


def _matrix_bytes(config: ModelConfig, module: str, rows: int) -> int:
    """Of `rows` rows of hidden_size columns, in the bits of `module`."""
    bits = next(
        (bits for name, bits in config.quantization.items() if re.sub(r"^language_model\.", "", name) == module),
        config.quantization[""],
    )
    values = rows * config.hidden_size
    return values * bits // 8 + values // GROUP_SIZE * _PAIR_BYTES
