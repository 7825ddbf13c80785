"""Float32 reference in torch: reads the MLX checkpoint (model.safetensors, mtp.safetensors), runs it through model.py
(text, MTP) and through Hugging Face transformers (generation), and reports the same numbers as evaluate.py, much faster
on a CPU.

usage: reference.py --model MLX_DIR [--parts DIR] [--eval eval.jsonl] [--text test.bin --rows 40] [--out results.json]
With --parts the bf16 weights before quantisation are used instead.
"""

import argparse
import glob
import json
import os
import re
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from model import CFG, Nano


def dequant(w, s, b):
    bits = w.shape[-1] * 32 // (s.shape[-1] * 64)
    x = w.to(torch.int64) & 0xFFFFFFFF
    q = (
        torch.stack([(x >> (bits * i)) & (2**bits - 1) for i in range(32 // bits)], -1)
        .reshape(*w.shape[:-1], -1)
        .float()
    )
    return (q.view(*s.shape, 64) * s.float()[..., None] + b.float()[..., None]).reshape(q.shape)


def load_mlx(path):
    """-> state dict of model.Nano in float32"""
    raw = {}
    for f in ("model.safetensors", "mtp.safetensors"):
        with safe_open(os.path.join(path, f), "pt") as z:
            for k in z.keys():  # noqa: SIM118  (the file handle is not iterable)
                raw[k.replace("language_model.model.", "model.").replace("language_model.lm_head", "lm_head")] = (
                    z.get_tensor(k)
                )
    sd = {}
    for k, v in raw.items():
        if k.endswith((".scales", ".biases")):
            continue
        n = k[: -len(".weight")] if k.endswith(".weight") else k
        if n + ".scales" in raw:
            v = dequant(v.view(torch.int32), raw[n + ".scales"], raw[n + ".biases"])
        elif "conv1d" in k:
            v = v.float().movedim(2, 1)
        elif v.ndim == 1 and not k.endswith(("A_log", "dt_bias", "linear_attn.norm.weight")):
            v = v.float() - 1
        sd[k] = v.float()
    for k in [k for k in sd if "switch_mlp.gate_proj" in k]:
        u, d, e = (
            k.replace("gate_proj", "up_proj"),
            k.replace("gate_proj", "down_proj"),
            k.replace("switch_mlp.gate_proj.weight", "experts."),
        )
        sd[e + "gate_up_proj"] = torch.cat([sd.pop(k), sd.pop(u)], 1)
        sd[e + "down_proj"] = sd.pop(d)
    return sd


def load_parts(path):
    sd = {}
    for p in glob.glob(os.path.join(path, "part*.safetensors")):
        sd |= load_file(p)
    return {k: v.float() for k, v in sd.items()}


def hf_model(sd):
    from transformers import Qwen3_5MoeTextConfig
    from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeForCausalLM

    c = CFG
    tc = Qwen3_5MoeTextConfig(
        vocab_size=c["vocab"],
        hidden_size=c["hidden"],
        num_hidden_layers=c["layers"],
        num_attention_heads=c["heads"],
        num_key_value_heads=c["kv"],
        head_dim=c["hd"],
        linear_num_key_heads=c["lk"],
        linear_num_value_heads=c["lv"],
        moe_intermediate_size=c["moe"],
        shared_expert_intermediate_size=c["shared"],
        num_experts=c["experts"],
        num_experts_per_tok=c["topk"],
        rope_parameters={
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": c["theta"],
            "rope_type": "default",
        },
    )
    m = Qwen3_5MoeForCausalLM(tc).float().eval()
    m.load_state_dict({k: v for k, v in sd.items() if not k.startswith("mtp.")})
    return m


@torch.no_grad()
def agree(m, ids, first):
    x = torch.tensor(ids)[None]
    h, _, _ = m.hidden(x[:, :-1])
    h2, _ = m.mtp_hidden(h, x[:, 1:])
    main, dr = m.logits(h).argmax(-1)[0][1:], m.logits(h2).argmax(-1)[0][:-1]
    k = torch.arange(2, 2 + len(main)) >= first + 1
    return int((main[k] == dr[k]).sum()), int(k.sum())


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", required=True)
    ap.add_argument("--parts")
    ap.add_argument("--eval")
    ap.add_argument("--text")
    ap.add_argument("--rows", type=int, default=40)
    ap.add_argument("--row", type=int, default=2048)
    ap.add_argument("--out")
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--show", type=int, default=40)
    a = ap.parse_args()
    torch.set_num_threads(a.threads)
    sd = load_parts(a.parts) if a.parts else load_mlx(a.model)
    m = Nano().eval()
    m.load_state_dict(sd)
    res = {}
    if a.text:
        ids = np.fromfile(a.text, dtype=np.uint16).astype(np.int64)
        s = n = g = d = 0
        with torch.no_grad():
            for i in range(0, len(ids) - a.row - 1, max(a.row, (len(ids) - 1) // a.rows)):
                r = torch.from_numpy(ids[i : i + a.row + 1])
                h, _, _ = m.hidden(r[None, :-1])
                lg = m.logits(h)[0]
                s += torch.nn.functional.cross_entropy(lg, r[1:], reduction="sum").item()
                n += a.row
                h2, _ = m.mtp_hidden(h, r[None, 1:])
                dr = m.logits(h2)[0].argmax(-1)[:-1]
                mn = lg.argmax(-1)[1:]
                g += int((dr == mn).sum())
                d += len(mn)
        res |= {
            "held-out text perplexity": round(float(np.exp(s / n)), 3),
            "text tokens": n,
            "mtp acceptance, held-out text": round(g / d, 4),
        }
        print(res, flush=True)
    if a.eval:
        from transformers import AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        tok = AutoTokenizer.from_pretrained(a.model)
        hf = hf_model(sd)
        eos = [tok.convert_tokens_to_ids(x) for x in ("<|im_end|>", "<|endoftext|>")]

        def call(s):
            q = re.search(r"<tool_call>\n<function=([^>\n]+)>\n(.*?)</function>\n</tool_call>", s, re.S)
            return q and {
                "name": q.group(1),
                "arguments": dict(re.findall(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>", q.group(2), re.S)),
            }

        def good(it, s):
            if it["check"] == "exact":
                return s == it["expected"].strip()
            if it["check"] == "json":
                try:
                    return json.loads(s) == json.loads(it["expected"])
                except ValueError:
                    return False
            c, e = call(s), it["expected_call"]
            return (
                bool(c)
                and c["name"] == e["name"]
                and c["arguments"] == {k: v if isinstance(v, str) else json.dumps(v) for k, v in e["arguments"].items()}
            )

        st, fails, t0 = defaultdict(lambda: [0, 0, 0, 0]), [], time.time()
        with open(a.eval) as lines:
            items = [json.loads(line) for line in lines]
        for it in items:
            p = tok.encode(
                tok.apply_chat_template(
                    it["messages"],
                    tools=it["tools"],
                    add_generation_prompt=True,
                    enable_thinking=it["enable_thinking"],
                    tokenize=False,
                ),
                add_special_tokens=False,
            )
            with torch.no_grad():
                o = hf.generate(
                    input_ids=torch.tensor([p]),
                    max_new_tokens=300,
                    do_sample=False,
                    eos_token_id=eos,
                    pad_token_id=eos[1],
                )[0, len(p) :].tolist()
            s = tok.decode([t for t in o if t not in eos])
            r = good(it, (s.split("</think>")[-1] if it["enable_thinking"] else s).strip())
            z = st[it["family"]]
            z[0] += r
            z[1] += 1
            if len(o) > 2:
                g, d = agree(m, p + o, len(p))
                z[2] += g
                z[3] += d
            if not r:
                fails.append((it["id"], it["enable_thinking"], len(p), it["expected"] or it.get("expected_call"), s))
        res["tasks"] = {k: f"{v[0]}/{v[1]}" for k, v in st.items()}
        res["all tasks"] = f"{sum(v[0] for v in st.values())}/{sum(v[1] for v in st.values())}"
        res["mtp acceptance, tasks"] = {k: round(v[2] / max(1, v[3]), 4) for k, v in st.items()} | {
            "all": round(sum(v[2] for v in st.values()) / sum(v[3] for v in st.values()), 4)
        }
        print(json.dumps(res, indent=1), round(time.time() - t0, 1), "s")
        for f in fails[: a.show]:
            print("FAIL", *f, sep=" | ")
    if a.out:
        Path(a.out).write_text(json.dumps(res, indent=1))


if __name__ == "__main__":
    main()
