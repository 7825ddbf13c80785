"""Train lily-nano on one GPU.

usage: train.py --data DIR --out DIR --minutes 16 [--lr 3e-3] [--batch 65536] [--workers 12]

DIR holds text.bin, text.start.npy, test.bin (prepare.py), filler.json (filler.py) and tokenizer.json.
The schedule follows the clock: warm-up, then a cosine to zero at the end of the given minutes; in the last 45 % of the
time the weights are seen through 4-bit quantisation, in the last 35 % the rows are 4096 instead of 2048 tokens long.
Writes OUT/part*.safetensors (bf16, Hugging Face names without the "model.language_model" prefix) and OUT/log.txt.
"""

import argparse
import glob
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from model import CFG, Nano, quant

ap = argparse.ArgumentParser()
ap.add_argument("--data", required=True)
ap.add_argument("--out", required=True)
ap.add_argument("--minutes", type=float, default=16)
ap.add_argument("--lr", type=float, default=3e-3)
ap.add_argument("--batch", type=int, default=65536)
ap.add_argument("--workers", type=int, default=12)
ap.add_argument("--rows", default="2048,4096")
ap.add_argument("--shards", default="/dev/shm/nano")
ap.add_argument("--seed", type=int, default=0)
ap.add_argument("--no-compile", action="store_true")
ap.add_argument("--max-steps", type=int, default=10**9)
ap.add_argument("--log-every", type=int, default=100)
ap.add_argument("--qat-from", type=float, default=0.55)
ap.add_argument("--long-from", type=float, default=0.65)
ap.add_argument("--max-shards", type=int, default=34)
ap.add_argument("--keep-shards", action="store_true")
ap.add_argument("--no-save", action="store_true")
ap.add_argument("--mtp", type=float, default=0.2)
a = ap.parse_args()
dev = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(a.seed)
torch.backends.cuda.matmul.allow_tf32 = True
os.makedirs(a.out, exist_ok=True)
os.makedirs(a.shards, exist_ok=True)
LOG = open(os.path.join(a.out, "log.txt"), "a")  # noqa: SIM115  (open for the whole run)


def say(*x):
    s = " ".join(map(str, x))
    print(s, flush=True)
    LOG.write(s + "\n")
    LOG.flush()


here = os.path.dirname(os.path.abspath(__file__))
procs = []
if not a.keep_shards or not glob.glob(a.shards + "/train_*.npz"):
    for i in range(a.workers):
        procs.append(
            subprocess.Popen(
                [
                    sys.executable,
                    os.path.join(here, "stream.py"),
                    a.data,
                    a.shards,
                    str(1000 * (a.seed + 1) + i),
                    str(a.max_shards),
                ]
            )
        )
    procs.append(subprocess.Popen([sys.executable, os.path.join(here, "stream.py"), a.data, a.shards, "-7", "1"]))

text = torch.from_numpy(np.fromfile(os.path.join(a.data, "text.bin"), dtype=np.uint16).astype(np.int16)).to(dev)
tstart = torch.from_numpy(np.load(os.path.join(a.data, "text.start.npy"))).to(dev)
test = torch.from_numpy(np.fromfile(os.path.join(a.data, "test.bin"), dtype=np.uint16).astype(np.int64)).to(dev)
CAP = 900_000_000 if dev == "cuda" else 8_000_000
chat = torch.zeros(CAP, dtype=torch.int16, device=dev)
chat_n = 0
starts = []
seen = set()
cstart = None


def poll():
    global chat_n, cstart
    new = False
    for p in sorted(glob.glob(a.shards + "/train_*.npz")):
        if p in seen or p.endswith(".tmp.npz"):
            continue
        seen.add(p)
        z = np.load(p)
        ids = torch.from_numpy(z["ids"].view(np.int16)).to(dev)
        if chat_n + len(ids) > CAP:
            continue
        chat[chat_n : chat_n + len(ids)] = ids
        starts.append(torch.from_numpy(z["start"]).to(dev) + chat_n)
        chat_n += len(ids)
        new = True
    if new:
        cstart = torch.cat(starts)


m = Nano().to(dev)
dt = torch.bfloat16 if dev == "cuda" else torch.float32
if not a.no_compile:
    torch._dynamo.config.cache_size_limit = 64
    for layer in list(m.model.layers) + list(m.mtp.layers):
        layer.forward = torch.compile(layer.forward, fullgraph=True, dynamic=False)
    m.head_loss = torch.compile(m.head_loss, dynamic=False)
dec = [p for n, p in m.named_parameters() if p.dim() >= 2]
nod = [p for n, p in m.named_parameters() if p.dim() < 2]
opt = torch.optim.AdamW(
    [{"params": dec, "weight_decay": 0.05}, {"params": nod, "weight_decay": 0.0}],
    lr=a.lr,
    betas=(0.9, 0.95),
    eps=1e-9,
    fused=dev == "cuda",
)
alpha = torch.zeros((), device=dev)
if not a.no_compile:
    with torch.no_grad():
        v = m.model.layers[0].mlp.experts.gate_up_proj
        y = torch.compile(quant)(v)
        z = quant(v)
        say("compiled quantiser: share of values that differ", (y != z).float().mean().item())
say("params", round(sum(p.numel() for p in m.parameters()) / 1e6, 3), "M; text tokens", len(text), "cfg", CFG)


def batch(T, B, frac):
    nt = max(1, round(B * (1 - frac)))
    nc = B - nt
    s = torch.randint(0, len(text) - T - 2, (nt,), device=dev)
    d = tstart[torch.randint(0, len(tstart), (nt,), device=dev)]
    s = torch.where((torch.rand(nt, device=dev) < 0.5) & (d < len(text) - T - 2), d, s)
    ar = torch.arange(T + 2, device=dev)
    x = text[s[:, None] + ar].int()
    w = torch.ones(x.shape, device=dev)
    if nc:
        c = cstart[torch.randint(0, len(cstart), (nc,), device=dev)]
        c = torch.minimum(c, torch.full_like(c, chat_n - T - 2))
        y = chat[c[:, None] + ar].int()
        x = torch.cat([x, y & 0x7FFF])
        w = torch.cat([w, torch.where(y < 0, 3.0, 0.1)])
    return x.long(), w, nt


def losses(x, w, al):
    T = x.shape[1] - 2
    h, aux, fs = m.hidden(x[:, :T], al, dt)
    ce, pred = m.head_loss(h, x[:, 1 : T + 1], w[:, 1 : T + 1], al, dt)
    h2, aux2 = m.mtp_hidden(h, x[:, 1 : T + 1], al, dt)
    ce2, pred2 = m.head_loss(h2, x[:, 2 : T + 2], w[:, 2 : T + 2], al, dt)
    return ce, ce2, aux + aux2 / 8, pred, pred2, fs


def save():
    if a.no_save:
        return
    parts, cur, n = [], {}, 0
    for k, v in m.state_dict().items():
        b = v.numel() * 2
        if n + b > 14_000_000:
            parts.append(cur)
            cur, n = {}, 0
        cur[k] = v.detach().to(torch.bfloat16).cpu().contiguous()
        n += b
    parts.append(cur)
    for i, p in enumerate(parts):
        save_file(p, os.path.join(a.out, f"part{i}.safetensors"))


@torch.no_grad()
def evaluate():
    m.eval()
    T = int(a.rows.split(",")[0])
    r = {}
    for al in (0.0, 1.0):
        alpha.fill_(al)
        n = min((len(test) - 2) // T, 64)
        x = test[: n * T].view(n, T)
        x = torch.cat([x, x[:, :2]], 1)
        s, c = 0.0, 0
        for i in range(0, n - n % 16 if n >= 16 else n, 16):
            b = x[i : i + 16]
            w = torch.ones(b.shape, device=dev)
            w[:, T:] = 0
            ce, *_ = losses(b, w, alpha)
            s += ce.item()
            c += 1
        r[f"text ppl q{int(al)}"] = round(math.exp(s / max(c, 1)), 3)
        f = glob.glob(a.shards + "/test_*.npz")
        if f:
            z = np.load(f[0])
            ids = torch.from_numpy(z["ids"].view(np.int16)).to(dev).int()
            n = min(len(ids) // T - 1, 64)
            y = torch.stack([ids[i * T : i * T + T + 2] for i in range(n)])
            x = (y & 0x7FFF).long()
            w = (y < 0).float()
            hit = tot = mh = mt = 0
            for i in range(0, n - n % 16 if n >= 16 else n, 16):
                _, _, _, (_, p), (_, p2), _ = losses(x[i : i + 16], w[i : i + 16], alpha)
                k = w[i : i + 16, 1 : T + 1] > 0
                hit += ((p == x[i : i + 16, 1 : T + 1]) & k).sum().item()
                tot += k.sum().item()
                k2 = w[i : i + 16, 2 : T + 2] > 0
                mh += ((p2[:, :-1] == p[:, 1:]) & k2[:, :-1]).sum().item()
                mt += k2[:, :-1].sum().item()
            r[f"answer token acc q{int(al)}"] = round(hit / tot, 4)
            r[f"mtp agree q{int(al)}"] = round(mh / mt, 4)
    m.train()
    return r


while cstart is None:
    poll()
    time.sleep(0.5)
rows = [int(v) for v in a.rows.split(",")]
t0 = None
step = 0
tok = 0
tl = time.time()
last_save = time.time()
BEGIN = time.time()
while step < a.max_steps:
    now = time.time()
    if step == 3:
        say("compiled after", round(now - BEGIN, 1), "s")
        t0 = BEGIN = now
    fr = 0.0 if t0 is None else min(1.0, (now - BEGIN) / (a.minutes * 60))
    if fr >= 1.0:
        break
    T = rows[1] if fr >= a.long_from and len(rows) > 1 else rows[0]
    B = max(2, a.batch // T)
    lr = a.lr * min(1.0, (step + 1) / 300) * (0.5 * (1 + math.cos(math.pi * fr)) * 0.99 + 0.01)
    for g in opt.param_groups:
        g["lr"] = lr
    alpha.fill_(min(1.0, max(0.0, (fr - a.qat_from) / 0.03)))
    x, w, nt = batch(T, B, 0.5 if fr < a.long_from else 0.6)
    ce, ce2, aux, pred, pred2, fs = losses(x, w, alpha)
    (ce + a.mtp * ce2 + 0.01 * aux).backward()
    gn = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    step += 1
    tok += T * B
    if step % a.log_every == 0:
        with torch.no_grad():
            loss = pred[0].view(B, T)
            k = w[nt:, 1 : T + 1] > 1
            hit = pred[1][nt:] == x[nt:, 1 : T + 1]
            lt, lc, ac = loss[:nt].mean().item(), (loss[nt:][k]).mean().item(), hit[k].float().mean().item()
            am = (pred2[1][:nt] == x[:nt, 2 : T + 2]).float().mean().item()
            use = [f"{f.max().item() * CFG['experts']:.1f}/{f.min().item() * CFG['experts']:.1f}" for f in fs]
        d = time.time() - tl
        tl = time.time()
        say(
            f"step {step} fr {fr:.3f} T {T} lr {lr:.2e} al {alpha.item():.2f} text {lt:.3f} chat {lc:.4f} acc {ac:.4f}"
            f" mtp-text-acc {am:.3f} ce2 {ce2.item():.3f} aux {aux.item():.3f} gn {gn.item():.2f} tok/s"
            f" {a.log_every * T * B / d / 1e3:.0f}K tot {tok / 1e6:.0f}M chat {chat_n / 1e6:.0f}M use {use[0]} {use[3]}"
            f" {use[-1]}" + (f" mem {torch.cuda.max_memory_allocated() / 1e9:.0f}GB" if dev == "cuda" else "")
        )
        if chat_n < CAP:
            poll()
        if not math.isfinite(lt):
            say("not finite, stop")
            break
    if time.time() - last_save > 120:
        save()
        last_save = time.time()
save()
say("done", step, "steps", tok, "tokens", round(time.time() - BEGIN, 1), "s; peak lr", a.lr)
say("eval", evaluate())
for p in procs:
    p.kill()
Path(a.out, "DONE").write_text("ok\n")
