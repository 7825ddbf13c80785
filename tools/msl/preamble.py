"""The macros that the host puts in front of a shader: sizes of a model and formats of its weights."""

import re
from collections.abc import Mapping, Sequence

# Fields of ModelConstants (shaders/lily_args.h) for Qwen3.6-35B-A3B.
SIZES: Mapping[str, int] = {
    "hidden_size": 2048, "vocab_size": 248320, "num_attention_layers": 10, "num_linear_layers": 30,
    "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "rotary_dim": 64,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "num_experts": 256, "num_experts_per_tok": 8,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
}  # fmt: skip
RMS_NORM_EPS = 1e-6
FORMS = {"simdgroup": "0", "tensor": "1"}  # of matrix products: LILY_GEMM_FORM
SAMPLE_BLOCK = 1024  # LILY_SAMPLE_BLOCK


def model_defines(
    sizes: Mapping[str, int] = SIZES, formats: Sequence[str] = ("q4g64", "q4g64"), eps: float = RMS_NORM_EPS
) -> dict[str, str]:
    """Macros for a model of these sizes and a kernel with weights of these formats: q4g64, q4g64w, q8g64 or q8g64w."""
    key_dim = sizes["linear_num_key_heads"] * sizes["linear_key_head_dim"]
    value_dim = sizes["linear_num_value_heads"] * sizes["linear_value_head_dim"]
    derived = {
        "key_dim": key_dim,
        "value_dim": value_dim,
        "conv_channels": 2 * key_dim + value_dim,
        "sample_blocks": -(-sizes["vocab_size"] // SAMPLE_BLOCK),
    }
    defines = {f"LILY_{name.upper()}": f"{value}u" for name, value in {**sizes, **derived}.items()}
    defines["LILY_RMS_NORM_EPS"] = f"{eps:.9e}f"
    for name, text in zip(("WEIGHT", "SECOND"), formats, strict=False):  # a kernel has none, one or two
        defines[f"LILY_{name}_BITS"] = text[1]
        defines[f"LILY_{name}_WIDE"] = str(int(text.endswith("w")))
    return defines


def kernel_defines(kernel: str, sizes: Mapping[str, int], eps: float, form: str) -> dict[str, str]:
    """Macros of a kernel by its full name; `form` of matrix products is one of FORMS."""
    formats = re.findall(r"_(q\dg64w?)", kernel)
    return model_defines(sizes, formats, eps) | {"LILY_GEMM_FORM": FORMS[form]}
