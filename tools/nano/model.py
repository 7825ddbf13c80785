"""Training model of lily-nano: the text model of Qwen3.6-35B-A3B (qwen3_5_moe) at a small size, in plain torch.

Parameter names are those of the Hugging Face checkpoint (prefix "model.language_model." left out), so that
export.py only has to rename. The parts:
- Gated DeltaNet in its chunked form (64 positions a chunk), with the chain of chunk states as one matrix recurrence,
- gated attention with grouped KV heads, per-head norms and partial RoPE,
- mixture of experts computed densely (with 16 experts one large product is faster than sorting tokens),
- a multi-token-prediction block (mtp.*): fc(cat(norm(embedding of token t+1), norm(final hidden t))) -> attention layer
  -> norm -> lm_head,
- fake quantisation: `alpha` blends from plain weights (0) to MLX affine 4-bit values (1), with straight-through
  gradients.
"""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

CFG = {
    "hidden": 256,
    "layers": 8,
    "experts": 16,
    "topk": 4,
    "moe": 64,
    "shared": 64,
    "heads": 4,
    "kv": 2,
    "hd": 256,
    "rot": 64,
    "theta": 1e7,
    "lk": 2,
    "lv": 4,
    "ld": 128,
    "conv": 4,
    "vocab": 4096,
    "eps": 1e-6,
}


# ---------------------------------------------------------------- MLX affine quantisation
def bf(x):
    """float32 rounded to bf16 precision, on the bits (a cast there and back is removed by torch.compile)."""
    i = x.view(torch.int32)
    return ((i + 0x7FFF + ((i >> 16) & 1)) & -65536).view(torch.float32)


def quant(w, bits=4, group=64):
    """Values that MLX affine quantisation gives for bf16 weights (scale and bias rounded to bf16)."""
    s = w.shape
    x = bf(w.detach().float().contiguous()).reshape(-1, group)
    hi, lo, n = x.amax(1, keepdim=True), x.amin(1, keepdim=True), 2**bits - 1
    side = lo.abs() > hi.abs()
    sc = ((hi - lo) / n).clamp_min(1e-7)
    sc = torch.where(side, sc, -sc)
    edge = torch.where(side, lo, hi)
    q0 = torch.round(edge / sc)
    nz = q0 != 0
    sc = torch.where(nz, edge / torch.where(nz, q0, torch.ones_like(q0)), sc)
    b = torch.where(nz, edge, torch.zeros_like(edge))
    q = torch.clamp(torch.round((x - b) / sc), 0, n)
    return (q * bf(sc) + bf(b)).reshape(s)


def fq(w, alpha, bits=4):
    return w if alpha is None else w + alpha * (quant(w, bits) - w.detach())


def lin(x, w, alpha, bits=4):
    return F.linear(x, fq(w, alpha, bits).to(x.dtype))


class Norm(nn.Module):
    def __init__(self, n, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(n))
        self.eps = eps

    def forward(self, x, dtype=None):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight.float())
        return y.to(dtype or x.dtype)


class W(nn.Module):  # a bare matrix under the name NAME.weight
    def __init__(self, *shape, std=None):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(*shape) * (std if std is not None else shape[-1] ** -0.5))


# ---------------------------------------------------------------- opaque pieces of the chunked delta rule
def _tri_inv(a):
    """(I + a)^-1 for strictly lower triangular a [.., 64, 64], by 16-blocks."""
    sh = a.shape
    a = a.reshape(-1, 64, 64)
    t = a.is_cuda and torch.backends.cuda.matmul.allow_tf32
    if t:
        torch.backends.cuda.matmul.allow_tf32 = False
    d = torch.stack([a[:, i : i + 16, i : i + 16] for i in range(0, 64, 16)], 1).reshape(-1, 16, 16)
    x = torch.eye(16, device=a.device, dtype=a.dtype) - d
    p = torch.bmm(d, d)
    for i in range(3):
        x = torch.baddbmm(x, x, p)
        if i < 2:
            p = torch.bmm(p, p)
    x = x.view(-1, 4, 16, 16)
    for m in (16, 32):  # merge neighbours
        n = 64 // m
        b = torch.stack([a[:, i + m : i + 2 * m, i : i + m] for i in range(0, 64, 2 * m)], 1)
        y = a.new_zeros(a.shape[0], n // 2, 2 * m, 2 * m)
        y[:, :, :m, :m] = x[:, 0::2]
        y[:, :, m:, m:] = x[:, 1::2]
        y[:, :, m:, :m] = -(x[:, 1::2] @ (b @ x[:, 0::2]))
        x = y
    if t:
        torch.backends.cuda.matmul.allow_tf32 = True
    return x.reshape(sh)


@torch.library.custom_op("nano::tri_inv", mutates_args=())
def tri_inv(a: torch.Tensor) -> torch.Tensor:
    return _tri_inv(a).contiguous()


@tri_inv.register_fake
def _(a):
    return torch.empty_like(a, memory_format=torch.contiguous_format)


def _ti_setup(ctx, inputs, output):
    ctx.save_for_backward(output)


def _ti_back(ctx, g):
    (t,) = ctx.saved_tensors
    tt = t.transpose(-1, -2)
    return torch.tril(-(tt @ (g @ tt)), -1)


tri_inv.register_autograd(_ti_back, setup_context=_ti_setup)


@torch.library.custom_op("nano::scan", mutates_args=())
def scan(m: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """s[0] = 0, s[n+1] = m[n] s[n] + b[n]; m, b: [N, BH, D, D]; returns s[0..N-1]."""
    s = torch.empty_like(b)
    s[0].zero_()
    for n in range(m.shape[0] - 1):
        torch.baddbmm(b[n], m[n], s[n], out=s[n + 1])
    return s


@scan.register_fake
def _(m, b):
    return torch.empty_like(b)


@torch.library.custom_op("nano::scan_back", mutates_args=())
def scan_back(m: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """d[n] = gradient that reaches s[n+1]; d[N-1] = 0, d[n-1] = g[n] + m[n]^T d[n]."""
    d = torch.empty_like(g)
    N = m.shape[0]
    d[N - 1].zero_()
    for n in range(N - 1, 0, -1):
        torch.baddbmm(g[n], m[n].transpose(1, 2), d[n], out=d[n - 1])
    return d


@scan_back.register_fake
def _(m, g):
    return torch.empty_like(g)


def _sc_setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], output)


def _sc_back(ctx, g):
    m, s = ctx.saved_tensors
    d = scan_back(m, g.contiguous())
    return d @ s.transpose(-1, -2), d


scan.register_autograd(_sc_back, setup_context=_sc_setup)


def delta_rule(q, k, v, g, beta, C=64):
    """Gated delta rule, chunked.

    q, k, v: [B, T, H, D] float32 (q, k normalised, q scaled); g (log decay), beta: [B, T, H].
    """
    B, T, H, D = q.shape
    pad = -T % C
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, 0, 0, pad)) for x in (q, k, v))
        g, beta = (F.pad(x, (0, 0, 0, pad)) for x in (g, beta))
    N = (T + pad) // C
    q, k, v = (x.view(B, N, C, H, D).permute(1, 0, 3, 2, 4).reshape(N, B * H, C, D) for x in (q, k, v))
    g, beta = (x.view(B, N, C, H).permute(1, 0, 3, 2).reshape(N, B * H, C) for x in (g, beta))
    G = g.cumsum(-1)
    low = torch.ones(C, C, device=q.device, dtype=torch.bool).tril()
    dec = torch.where(low, (G[..., :, None] - G[..., None, :]), torch.full((), -1e9, device=q.device)).exp()
    kb = k * beta[..., None]
    kt = k.transpose(-1, -2)
    A = (kb @ kt) * dec
    A = torch.where(low & ~torch.eye(C, device=q.device, dtype=torch.bool), A, torch.zeros((), device=q.device))
    Ti = tri_inv(A)
    u = Ti @ (v * beta[..., None])
    w = Ti @ (kb * G.exp()[..., None])
    last = G[..., -1:]
    kd = (k * (last - G).exp()[..., None]).transpose(-1, -2)  # [.., D, C]
    eye = torch.eye(D, device=q.device)
    M = eye * last.exp()[..., None] - kd @ w
    S = scan(M, kd @ u)
    vn = u - w @ S
    o = (q * G.exp()[..., None]) @ S + ((q @ kt) * dec) @ vn
    o = o.view(N, B, H, C, D).permute(1, 0, 3, 2, 4).reshape(B, N * C, H, D)
    return o[:, :T]


# ---------------------------------------------------------------- layers
class GDN(nn.Module):
    def __init__(self, c, i):
        super().__init__()
        self.c = c
        kd, vd, h = c["lk"] * c["ld"], c["lv"] * c["ld"], c["hidden"]
        self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a = (
            W(2 * kd + vd, h),
            W(vd, h),
            W(c["lv"], h),
            W(c["lv"], h),
        )
        self.conv1d = W(2 * kd + vd, 1, c["conv"], std=0.5)
        dt = torch.exp(torch.linspace(math.log(0.002), math.log(0.1), c["lv"])).roll(i)
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.log(torch.linspace(1, 8, c["lv"])))
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.ones(c["ld"]))
        self.out_proj = W(h, vd, std=vd**-0.5 / math.sqrt(2 * c["layers"]))

    def forward(self, x, rope, al):
        c = self.c
        B, T, _ = x.shape
        qkv, z = lin(x, self.in_proj_qkv.weight, al), lin(x, self.in_proj_z.weight, al)
        b, a = lin(x, self.in_proj_b.weight, al).float(), lin(x, self.in_proj_a.weight, al).float()
        w = self.conv1d.weight.squeeze(1)
        p = F.pad(qkv, (0, 0, c["conv"] - 1, 0)).float()
        y = sum(p[:, j : j + T] * w[:, j] for j in range(c["conv"]))
        y = F.silu(y)
        kd = c["lk"] * c["ld"]
        q, k, v = (
            y[..., :kd].reshape(B, T, -1, c["ld"]),
            y[..., kd : 2 * kd].reshape(B, T, -1, c["ld"]),
            y[..., 2 * kd :].reshape(B, T, -1, c["ld"]),
        )

        def l2(t):
            return t * torch.rsqrt(t.pow(2).sum(-1, keepdim=True) + 1e-6)

        n = c["lv"] // c["lk"]
        q = (l2(q) * c["ld"] ** -0.5).repeat_interleave(n, 2)
        k = l2(k).repeat_interleave(n, 2)
        g = -self.A_log.float().exp() * F.softplus(a + self.dt_bias)
        o = delta_rule(q, k, v, g, b.sigmoid())
        o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + c["eps"]) * self.norm.weight
        o = (o * F.silu(z.float().view(B, T, -1, c["ld"]))).to(x.dtype).reshape(B, T, -1)
        return lin(o, self.out_proj.weight, al)


class Attn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        h, d = c["hidden"], c["hd"]
        self.q_proj, self.k_proj, self.v_proj = W(c["heads"] * d * 2, h), W(c["kv"] * d, h), W(c["kv"] * d, h)
        self.o_proj = W(h, c["heads"] * d, std=(c["heads"] * d) ** -0.5 / math.sqrt(2 * c["layers"]))
        self.q_norm, self.k_norm = Norm(d, c["eps"]), Norm(d, c["eps"])

    def forward(self, x, rope, al):
        c = self.c
        B, T, _ = x.shape
        d = c["hd"]
        q, gate = lin(x, self.q_proj.weight, al).view(B, T, c["heads"], 2 * d).split(d, -1)
        k = lin(x, self.k_proj.weight, al).view(B, T, c["kv"], d)
        v = lin(x, self.v_proj.weight, al).view(B, T, c["kv"], d)
        cos, sin = rope

        def rot(t):
            r, s = t[..., : c["rot"]].float(), t[..., c["rot"] :]
            a, b = r.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(t.dtype), s

        q = torch.cat(rot(self.q_norm(q)), -1).transpose(1, 2)
        k = torch.cat(rot(self.k_norm(k)), -1).transpose(1, 2)
        n = c["heads"] // c["kv"]
        o = F.scaled_dot_product_attention(
            q, k.repeat_interleave(n, 1), v.transpose(1, 2).repeat_interleave(n, 1), is_causal=True
        )
        o = o.transpose(1, 2).reshape(B, T, -1) * torch.sigmoid(gate.reshape(B, T, -1))
        return lin(o, self.o_proj.weight, al)


class MLP(nn.Module):
    def __init__(self, h, m, L):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = W(m, h), W(m, h), W(h, m, std=m**-0.5 / math.sqrt(2 * L))


class MoE(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        h, m, E = c["hidden"], c["moe"], c["experts"]
        self.gate = W(E, h, std=0.02)
        self.experts = nn.Module()
        self.experts.gate_up_proj = nn.Parameter(torch.randn(E, 2 * m, h) * h**-0.5)
        self.experts.down_proj = nn.Parameter(torch.randn(E, h, m) * m**-0.5 / math.sqrt(2 * c["layers"]))
        self.shared_expert = MLP(h, c["shared"], c["layers"])
        self.shared_expert_gate = W(1, h, std=0.02)

    def forward(self, x, al):
        c = self.c
        E, m = c["experts"], c["moe"]
        lg = lin(x, self.gate.weight, al, 8).float()
        i = torch.arange(E, device=x.device)
        a, b = lg[..., :, None], lg[..., None, :]
        rank = ((b > a) | ((b == a) & (i[None, :] < i[:, None]))).sum(-1)
        sel = rank < c["topk"]
        pr = torch.softmax(lg, -1)
        sc = torch.where(sel, pr, torch.zeros((), device=x.device))
        sc = sc / sc.sum(-1, keepdim=True)
        gu = lin(x, self.experts.gate_up_proj.view(E * 2 * m, -1), al).view(*x.shape[:-1], E, 2, m)
        act = F.silu(gu[..., 0, :]) * gu[..., 1, :] * sc[..., None].to(x.dtype)
        dn = fq(self.experts.down_proj, al).permute(1, 0, 2).reshape(c["hidden"], E * m)
        y = F.linear(act.reshape(*x.shape[:-1], E * m), dn.to(x.dtype))
        s = self.shared_expert
        z = lin(F.silu(lin(x, s.gate_proj.weight, al)) * lin(x, s.up_proj.weight, al), s.down_proj.weight, al)
        y = y + torch.sigmoid(lin(x, self.shared_expert_gate.weight, al, 8)) * z
        f = sel.float().mean((0, 1)) / c["topk"]
        return y, E * (f * pr.mean((0, 1))).sum(), f


class Layer(nn.Module):
    def __init__(self, c, i, full):
        super().__init__()
        if full:
            self.self_attn = Attn(c)
        else:
            self.linear_attn = GDN(c, i)
        self.full = full
        self.mlp = MoE(c)
        self.input_layernorm, self.post_attention_layernorm = Norm(c["hidden"], c["eps"]), Norm(c["hidden"], c["eps"])

    def forward(self, x, rope, al, dt):
        x = x + (self.self_attn if self.full else self.linear_attn)(self.input_layernorm(x, dt), rope, al)
        y, aux, f = self.mlp(self.post_attention_layernorm(x, dt), al)
        return x + y, aux, f


class Text(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = W(c["vocab"], c["hidden"], std=0.05)
        self.layers = nn.ModuleList(Layer(c, i, i % 4 == 3) for i in range(c["layers"]))
        self.norm = Norm(c["hidden"], c["eps"])


class Nano(nn.Module):
    def __init__(self, c=CFG):
        super().__init__()
        self.c = c
        h = c["hidden"]
        self.model = Text(c)
        self.lm_head = W(c["vocab"], h, std=0.02)
        self.mtp = nn.Module()
        self.mtp.pre_fc_norm_embedding, self.mtp.pre_fc_norm_hidden, self.mtp.norm = (
            Norm(h, c["eps"]),
            Norm(h, c["eps"]),
            Norm(h, c["eps"]),
        )
        self.mtp.fc = W(h, 2 * h)
        self.mtp.layers = nn.ModuleList([Layer(c, 0, True)])

    def rope(self, T, dev):
        f = self.c["theta"] ** (-torch.arange(0, self.c["rot"], 2, device=dev).float() / self.c["rot"])
        a = torch.arange(T, device=dev).float()[:, None] * f
        return a.cos()[:, None], a.sin()[:, None]

    def emb(self, ids, al):
        return F.embedding(ids, fq(self.model.embed_tokens.weight, al)).float()

    def hidden(self, ids, al=None, dt=torch.float32):
        x, rope, aux, fs = self.emb(ids, al), self.rope(ids.shape[1], ids.device), 0, []
        for layer in self.model.layers:
            x, a, f = layer(x, rope, al, dt)
            aux = aux + a
            fs.append(f)
        return self.model.norm(x), aux / len(fs), fs

    def mtp_hidden(self, h, nxt, al=None, dt=torch.float32):
        """h: final hidden of positions 0..T-1; nxt: ids of positions 1..T."""
        e = self.mtp.pre_fc_norm_embedding(self.emb(nxt, al), dt)
        x = lin(torch.cat([e, self.mtp.pre_fc_norm_hidden(h, dt)], -1), self.mtp.fc.weight, al).float()
        x, aux, _ = self.mtp.layers[0](x, self.rope(h.shape[1], h.device), al, dt)
        return self.mtp.norm(x), aux

    def logits(self, h, al=None, dt=torch.float32):
        return lin(h.to(dt), self.lm_head.weight, al).float()

    def head_loss(self, h, tgt, w, al, dt):
        lg = self.logits(h, al, dt)
        ce = F.cross_entropy(lg.view(-1, lg.shape[-1]), tgt.reshape(-1), reduction="none")
        return (ce * w.reshape(-1)).sum() / w.sum(), (ce.detach(), lg.detach().argmax(-1).view(tgt.shape))
