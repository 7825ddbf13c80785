"""Check a converted checkpoint with mlx-lm: held-out perplexity, greedy task accuracy, acceptance of the MTP block.

usage: evaluate.py --model DIR [--eval eval.jsonl] [--text test.bin --tokens 40960] [--mtp] [--out results.json]
       [--say "prompt" ...]

Task checks: "exact" compares the text after the think block, "json" compares parsed JSON, "call" compares function name
and arguments. MTP (multi-token prediction) acceptance: share of draft tokens (made from the hidden state of position t
and the token at t+1) that equal the model's own greedy choice for t+2.
"""

import argparse
import json
import os
import re
import time
from collections import defaultdict
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm import load
from mlx_lm.generate import generate_step
from mlx_lm.models.qwen3_5 import DecoderLayer, TextModelArgs

ap = argparse.ArgumentParser()
ap.add_argument("--model", required=True)
ap.add_argument("--eval")
ap.add_argument("--text")
ap.add_argument("--tokens", type=int, default=40960)
ap.add_argument("--mtp", action="store_true")
ap.add_argument("--out")
ap.add_argument("--say", action="append", default=[])
ap.add_argument("--limit", type=int, default=10**9)
ap.add_argument("--row", type=int, default=2048)
ap.add_argument("--show", type=int, default=0)
a = ap.parse_args()
model, tok = load(a.model)
core, head = model.language_model.model, model.language_model.lm_head
res = {}


class MTP(nn.Module):
    def __init__(self, path):
        super().__init__()
        t = TextModelArgs.from_dict(json.loads(Path(path, "config.json").read_text())["text_config"])
        h = t.hidden_size
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.norm = (
            nn.RMSNorm(h, eps=t.rms_norm_eps) for _ in range(3)
        )
        self.fc = nn.Linear(2 * h, h, bias=False)
        self.layers = [DecoderLayer(t, t.full_attention_interval - 1)]
        nn.quantize(
            self,
            group_size=64,
            bits=4,
            class_predicate=lambda p, m: (
                hasattr(m, "to_quantized")
                and ({"group_size": 64, "bits": 8} if p.endswith(("mlp.gate", "shared_expert_gate")) else True)
            ),
        )
        self.load_weights([(k[4:], v) for k, v in mx.load(os.path.join(path, "mtp.safetensors")).items()])

    def __call__(self, hidden, nxt):
        x = self.fc(
            mx.concatenate([self.pre_fc_norm_embedding(core.embed_tokens(nxt)), self.pre_fc_norm_hidden(hidden)], -1)
        )
        return self.norm(self.layers[0](x, mask="causal"))


mtp = MTP(a.model) if a.mtp else None


def agree(ids, first):
    """-> (accepted, drafted) for draft tokens at positions first+1.. of ids"""
    x = mx.array(ids)[None]
    h = core(x[:, :-1])
    main = mx.argmax(head(h), -1)[0]  # greedy choice for positions 1..
    dr = mx.argmax(head(mtp(h, x[:, 1:])), -1)[0]  # drafts for positions 2..
    m, d = np.array(main)[1:], np.array(dr)[:-1]  # both: positions 2..
    k = np.arange(2, 2 + len(m)) >= first + 1
    return int((m[k] == d[k]).sum()), int(k.sum())


if a.text:
    ids = np.fromfile(a.text, dtype=np.uint16).astype(np.int32)
    s = n = ok = tot = 0
    t0 = time.time()
    step = max(a.row, (len(ids) - 1) // max(1, a.tokens // a.row))  # rows spread over the whole file
    for i in range(0, len(ids) - a.row - 1, step):
        r = ids[i : i + a.row + 1]
        lg = model(mx.array(r[None, :-1])).astype(mx.float32)
        s += nn.losses.cross_entropy(lg[0], mx.array(r[1:]), reduction="sum").item()
        n += a.row
        if mtp:
            g, d = agree(r.tolist(), 1)
            ok += g
            tot += d
    res["held-out text perplexity"] = round(float(np.exp(s / n)), 3)
    res["text tokens"] = n
    if tot:
        res["mtp acceptance, held-out text"] = round(ok / tot, 4)
    print(res, round(time.time() - t0, 1), "s", flush=True)


def gen(ids, most=400):
    out = []
    for t, _ in generate_step(mx.array(ids), model, max_tokens=most):
        t = int(t)
        if t in tok.eos_token_ids:
            out.append(t)
            break
        out.append(t)
    return out


def parse_call(s):
    m = re.search(r"<tool_call>\n<function=([^>\n]+)>\n(.*?)</function>\n</tool_call>", s, re.S)
    return m and {
        "name": m.group(1),
        "arguments": dict(re.findall(r"<parameter=([^>\n]+)>\n(.*?)\n</parameter>", m.group(2), re.S)),
    }


def good(it, s):
    if it["check"] == "exact":
        return s.strip() == it["expected"].strip()
    if it["check"] == "json":
        try:
            return json.loads(s) == json.loads(it["expected"])
        except ValueError:
            return False
    c, e = parse_call(s), it["expected_call"]
    return (
        bool(c)
        and c["name"] == e["name"]
        and c["arguments"] == {k: v if isinstance(v, str) else json.dumps(v) for k, v in e["arguments"].items()}
    )


def prompt(ms, tools, think):
    ms = json.loads(json.dumps(ms))
    return tok.apply_chat_template(ms, tools=tools, add_generation_prompt=True, enable_thinking=think, tokenize=False)


if a.eval:
    st, fails = defaultdict(lambda: [0, 0, 0, 0, 0]), []
    t0 = time.time()
    with open(a.eval) as lines:
        items = [json.loads(line) for line in lines][: a.limit]
    for it in items:
        p = tok.encode(prompt(it["messages"], it["tools"], it["enable_thinking"]), add_special_tokens=False)
        o = gen(p)
        s = tok.decode([t for t in o if t not in tok.eos_token_ids])
        ans = s.split("</think>")[-1].strip() if it["enable_thinking"] else s.strip()
        r = good(it, ans)
        z = st[it["family"]]
        z[0] += r
        z[1] += 1
        z[4] += len(o)
        if mtp and len(o) > 2:
            g, d = agree(p + o, len(p))
            z[2] += g
            z[3] += d
        if not r:
            fails.append((it["id"], it["enable_thinking"], it["expected"] or it.get("expected_call"), s))
    res["tasks"] = {k: f"{v[0]}/{v[1]}" for k, v in st.items()}
    res["all tasks"] = f"{sum(v[0] for v in st.values())}/{sum(v[1] for v in st.values())}"
    if mtp:
        res["mtp acceptance, tasks"] = {k: round(v[2] / max(1, v[3]), 4) for k, v in st.items()} | {
            "all": round(sum(v[2] for v in st.values()) / max(1, sum(v[3] for v in st.values())), 4)
        }
    print(json.dumps(res, indent=1), round(time.time() - t0, 1), "s", flush=True)
    for f in fails[: a.show]:
        print("FAIL", *f, sep=" | ")
for q in a.say:
    for th in (False, True):
        print(">>>", q, "(thinking)" if th else "")
        print(
            tok.decode(
                gen(tok.encode(prompt([{"role": "user", "content": q}], None, th), add_special_tokens=False), 200)
            )
        )
if a.out:
    Path(a.out).write_text(json.dumps(res, indent=1))
