"""Trained parts -> Hugging Face checkpoint (bf16) -> MLX affine 4-bit checkpoint.

usage: export.py --parts DIR --tok DIR --hf HF_DIR --mlx MLX_DIR

HF_DIR   config.json, model.safetensors (model.language_model.*, lm_head.*, mtp.*), tokenizer files
MLX_DIR  what mlx-lm's converter writes (language_model.model.*; 4 bits, group 64; 8 bits for mlp.gate and
         mlp.shared_expert_gate), the same tokenizer files, and mtp.safetensors with the multi-token-prediction block in
         the same form.
"""

import argparse
import glob
import json
import os
import shutil
from pathlib import Path

import mlx.core as mx
import torch
from mlx_lm import convert
from safetensors.torch import load_file, save_file

from model import CFG

ap = argparse.ArgumentParser()
ap.add_argument("--parts", required=True)
ap.add_argument("--tok", required=True)
ap.add_argument("--hf", required=True)
ap.add_argument("--mlx", required=True)
a = ap.parse_args()
c, L = CFG, CFG["layers"]
sd = {}
for p in sorted(glob.glob(os.path.join(a.parts, "part*.safetensors"))):
    sd |= load_file(p)
out = {}
for k, v in sd.items():
    if k.startswith("model."):
        k = "model.language_model." + k[len("model.") :]
    out[k] = (v.float() if k.endswith("A_log") else v.to(torch.bfloat16)).contiguous()
os.makedirs(a.hf, exist_ok=True)
save_file(out, os.path.join(a.hf, "model.safetensors"), metadata={"format": "pt"})
tc = json.loads(Path(a.tok, "tokenizer_config.json").read_text())
sid = {v["content"]: int(k) for k, v in tc["added_tokens_decoder"].items()}
text = {
    "model_type": "qwen3_5_moe_text",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "bos_token_id": sid["<|endoftext|>"],
    "eos_token_id": sid["<|endoftext|>"],
    "pad_token_id": None,
    "dtype": "bfloat16",
    "full_attention_interval": 4,
    "head_dim": c["hd"],
    "hidden_act": "silu",
    "hidden_size": c["hidden"],
    "initializer_range": 0.02,
    "layer_types": ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(L)],
    "linear_conv_kernel_dim": c["conv"],
    "linear_key_head_dim": c["ld"],
    "linear_num_key_heads": c["lk"],
    "linear_num_value_heads": c["lv"],
    "linear_value_head_dim": c["ld"],
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 8192,
    "moe_intermediate_size": c["moe"],
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_attention_heads": c["heads"],
    "num_experts": c["experts"],
    "num_experts_per_tok": c["topk"],
    "num_hidden_layers": L,
    "num_key_value_heads": c["kv"],
    "norm_topk_prob": True,
    "output_router_logits": False,
    "partial_rotary_factor": c["rot"] / c["hd"],
    "rms_norm_eps": c["eps"],
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": c["shared"],
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": c["vocab"],
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": c["rot"] / c["hd"],
        "rope_theta": int(c["theta"]),
        "rope_type": "default",
    },
}
cfg = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "eos_token_id": [sid["<|im_end|>"], sid["<|endoftext|>"]],
    "image_token_id": sid["<|image_pad|>"],
    "video_token_id": sid["<|video_pad|>"],
    "vision_start_token_id": sid["<|vision_start|>"],
    "vision_end_token_id": sid["<|vision_end|>"],
    "text_config": text,
    "tie_word_embeddings": False,
    "transformers_version": "5.0.0",
}
Path(a.hf, "config.json").write_text(json.dumps(cfg, indent=2))
gen = {
    "bos_token_id": sid["<|endoftext|>"],
    "eos_token_id": [sid["<|im_end|>"], sid["<|endoftext|>"]],
    "pad_token_id": sid["<|endoftext|>"],
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
}
Path(a.hf, "generation_config.json").write_text(json.dumps(gen, indent=2))
TOK = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
for f in TOK:
    shutil.copy(os.path.join(a.tok, f), a.hf)

tmp = a.mlx.rstrip("/") + ".tmp"
shutil.rmtree(tmp, ignore_errors=True)
convert(a.hf, tmp, quantize=True, q_group_size=64, q_bits=4, dtype="bfloat16")
os.makedirs(a.mlx, exist_ok=True)
for f in ("config.json", "model.safetensors"):
    shutil.copy(os.path.join(tmp, f), a.mlx)
for f in (*TOK, "generation_config.json"):
    shutil.copy(os.path.join(a.hf, f), a.mlx)
shutil.rmtree(tmp)
p = Path(a.mlx, "config.json")
done = json.loads(p.read_text())
# The converter renames this key to "type": keep both.
done["text_config"]["rope_parameters"]["rope_type"] = "default"
p.write_text(json.dumps(done, indent=2))

# the multi-token-prediction block, in the same form as the main file
mtp = {}
w = mx.load(os.path.join(a.hf, "model.safetensors"))


def q(name, x, bits=4):
    mtp[name + ".weight"], mtp[name + ".scales"], mtp[name + ".biases"] = mx.quantize(x, group_size=64, bits=bits)


for k in sorted(w):
    if not k.startswith("mtp."):
        continue
    v, n = w[k], k[: -len(".weight")] if k.endswith(".weight") else k
    if v.ndim == 1:
        mtp[k] = v + 1.0  # gains are stored as 1 + w, as in the main file
    elif n.endswith("experts.gate_up_proj"):
        g, u = mx.split(v, 2, axis=1)
        b = n.replace("experts.gate_up_proj", "switch_mlp.")
        q(b + "gate_proj", g)
        q(b + "up_proj", u)
    elif n.endswith("experts.down_proj"):
        q(n.replace("experts.down_proj", "switch_mlp.down_proj"), v)
    else:
        q(n, v, 8 if n.endswith(("mlp.gate", "shared_expert_gate")) else 4)
mx.save_safetensors(os.path.join(a.mlx, "mtp.safetensors"), mtp, metadata={"format": "mlx"})
for f in sorted(os.listdir(a.mlx)):
    print(f, os.path.getsize(os.path.join(a.mlx, f)))
