"""Write the references of `lily doctor --selftest` (python/lily/selftest): all outputs of its cases in float64.

    python -m tools.make_selftest

The formulas are those of tests/oracles, which know nothing of the kernels.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from lily.selftest import REFERENCES, sampled
from lily.selftest.cases import Case, all_cases
from lily.selftest.cases.attention import KEYS_PER_SPLIT, POSITIONS, SPLITS, THETA
from lily.selftest.cases.delta_net import CHANNELS
from lily.selftest.cases.sampling import SEEDS
from tests.oracles import delta_net, moe
from tests.oracles import sample as sampling
from tests.oracles.attention import rope
from tests.oracles.rows import F64, gated_norm, norm, sigmoid, swiglu

Array = NDArray[Any]
Inputs = Mapping[str, Any]
Outputs = dict[str, Array]


def wide(*arrays: Array) -> list[F64]:
    return [array.astype(np.float64) for array in arrays]


def of_projection(i: Inputs, names: list[str]) -> Outputs:
    x = i["x"].astype(np.float64) if i["gain"] is None else norm(i["x"], i["gain"])
    parts = np.split(x @ i["w"].dense.T, np.cumsum(i["parts"])[:-1], axis=1)
    return dict(zip(names, parts, strict=True))


def of_residual(i: Inputs) -> Outputs:
    return {"x": i["x"] + i["y"].astype(np.float64) @ i["w"].dense.T}


def of_gdn_out(i: Inputs) -> Outputs:
    y = gated_norm(i["o"], i["z"], i["gain"])
    return {"x": i["x"] + y.reshape(len(y), -1) @ i["w"].dense.T}


def of_shared_up(i: Inputs) -> Outputs:
    x = i["x"].astype(np.float64) if i["gain"] is None else norm(i["x"], i["gain"])
    return {"hs": swiglu(x, i["gate"].dense, i["up"].dense)}


def of_lm_head(i: Inputs) -> Outputs:
    return {"logits": norm(i["x"], i["gain"]) @ i["w"].dense.T, "nan": np.zeros(1, np.uint32)}


def of_attn_prep(i: Inputs) -> Outputs:
    turned = {name: rope(norm(i[name], i[f"{name}_gain"]), i["positions"], THETA, 16) for name in ("q", "k")}
    return {**turned, "v": i["v"]}


def of_attn_split(i: Inputs) -> Outputs:
    average, log_sum = np.empty((len(POSITIONS), 4, SPLITS, 64)), np.empty((len(POSITIONS), 4, SPLITS))
    for row, (k, v) in enumerate(i["rows"]):
        for head in range(4):
            for split in range(SPLITS):
                keys = slice(split * KEYS_PER_SPLIT, min((split + 1) * KEYS_PER_SPLIT, POSITIONS[row] + 1))
                scores = k[keys, head // 2].astype(np.float64) @ i["q"][row, head].astype(np.float64) / 8
                p = np.exp(scores - scores.max())
                average[row, head, split] = p @ v[keys, head // 2].astype(np.float64) / p.sum()
                log_sum[row, head, split] = scores.max() + np.log(p.sum())
    return {"average": average, "log_sum": log_sum}


def of_attn_combine(i: Inputs) -> Outputs:
    (partial, gate) = wide(i["partial"], i["gate"])
    top = partial[..., 64].max(axis=-1, keepdims=True)
    factor = np.where(partial[..., 65] > 0, np.exp(partial[..., 64] - top), 0)
    total = (factor * partial[..., 65]).sum(axis=-1)[..., None]
    return {"y": (factor[..., None] * partial[..., :64]).sum(axis=2) / total * sigmoid(gate)}


def of_attn_prefill(i: Inputs) -> Outputs:
    first, last, ending = i["first_key"], i["first_key"] + i["num_keys"], i["first_key"] + i["num_keys"] - i["position"]
    q, gate, k, v, partial = wide(i["q"], i["gate"], i["k"][first:last], i["v"][first:last], i["partial"])
    k, v = np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) / 8
    scores[:, np.arange(first, last) > i["position"] + np.arange(len(q))[:, None]] = -np.inf
    weights, factor = np.exp(scores), np.exp(partial[..., 64])  # small numbers: no maximum is needed
    total = weights.sum(axis=-1).T + factor * partial[..., 65]
    average = (np.einsum("hij,jhd->ihd", weights, v) + factor[..., None] * partial[..., :64]) / total[..., None]
    y = average[:ending] * sigmoid(gate[:ending])
    return {"y": y, "average": average[ending:], "log_sum": np.log(total[ending:])}


def of_gdn_step(i: Inputs) -> Outputs:
    conv, state = i["conv_state"].astype(np.float64), i["state"].astype(np.float64)
    o = []
    for row, (slot_in, slot_out) in enumerate([(3, 4), (0, 1), (1, 2)]):
        layer = delta_net.DeltaNet(
            *wide(i["conv_w"], i["a_log"], i["dt_bias"]), conv[slot_in, 1].copy(), state[slot_in, 1].copy()
        )
        o.append(layer.step(*wide(i["qkv"][row], *i["ba"][row])))
        conv[slot_out, 1], state[slot_out, 1] = layer.conv_state, layer.recurrent_state
    return {"o": np.stack(o), "conv_state": conv[[4, 1, 2], 1], "state": state[[4, 1, 2], 1]}


def of_gdn_conv(i: Inputs) -> Outputs:
    history = i["conv_state"][3, 1]
    y = delta_net.convolve(*wide(i["qkv"], history, i["conv_w"]))
    q, k, v = (part.reshape(len(y), -1, 64) for part in np.split(y, [128, 256], axis=1))
    b, a = wide(i["ba"][:, 0], i["ba"][:, 1])
    g, beta = delta_net.gates(b, a, *wide(i["a_log"], i["dt_bias"]))
    assert y.shape[1] == CHANNELS
    return {
        "conv_state": np.concatenate([history, i["qkv"]])[-3:],
        "q": delta_net.l2_norm(q) / 8,
        "k": delta_net.l2_norm(k),
        "v": v,
        "g": g,
        "beta": beta,
    }


def of_gdn_chunk(i: Inputs) -> Outputs:
    parts = delta_net.chunk_parts(*wide(*(i[name] for name in ("q", "k", "v", "g", "beta"))))
    return dict(zip(("u", "w", "qk"), parts, strict=True))


def of_gdn_scan(i: Inputs) -> Outputs:
    """The chunked form of model.md, with u, w and qk as they are given."""
    q, k, u, w, qk, g = wide(*(i[name] for name in ("q", "k", "u", "w", "qk", "g")))
    state, o = i["state"][3, 1].astype(np.float64), np.empty_like(u)
    for begin in range(0, len(u), 64):
        rows = slice(begin, min(begin + 64, len(u)))
        for head in range(4):
            total = np.cumsum(g[rows, head])[:, None]
            d = u[rows, head] - w[rows, head] @ state[head]
            o[rows, head] = np.exp(total) * q[rows, head // 2] @ state[head] + qk[rows, head, : len(d)] @ d
            keys = np.exp(total[-1] - total) * k[rows, head // 2]
            state[head] = np.exp(total[-1]) * state[head] + keys.T @ d
    return {"o": o, "state": state}


def of_gated_norm(i: Inputs) -> Outputs:
    return {"y": gated_norm(i["o"], i["z"], i["gain"]).reshape(len(i["o"]), -1)}


def of_experts_up(i: Inputs) -> Outputs:
    ids, weights = moe.topk(i["logits"].astype(np.float64), 2)
    h = moe.up(norm(i["x"], i["gain"]), i["slot"][ids], i["gate"].dense, i["up"].dense)
    return {"h": h, "topk_ids": ids, "topk_weights": weights, "abort": np.zeros(1, np.uint32)}


def of_experts_down(i: Inputs) -> Outputs:
    d = moe.down(i["h"].astype(np.float64), i["slot"][i["ids"]], i["down"].dense)
    s = i["hs"].astype(np.float64) @ i["shared"].dense.T
    return {"x": i["x"] + moe.combine(d, i["weights"].astype(np.float64), s, i["shared_gate"])}


def of_experts_up_tile(i: Inputs) -> Outputs:
    h = moe.up(i["y"].astype(np.float64), i["slot"][i["ids"]], i["gate"].dense, i["up"].dense)
    return {"h": h.reshape(-1, 64)[i["order"]], "abort": np.zeros(1, np.uint32)}


def of_experts_down_tile(i: Inputs) -> Outputs:
    by_assignment = np.empty_like(i["h"], np.float64)
    by_assignment[i["order"]] = i["h"]
    return {"d": moe.down(by_assignment.reshape(-1, 2, 64), i["slot"][i["ids"]], i["down"].dense)}


def of_topk(i: Inputs) -> Outputs:
    ids, weights = moe.topk(i["logits"].astype(np.float64), 2)
    return {"topk_ids": ids, "topk_weights": weights}


def of_moe_plan(i: Inputs) -> Outputs:
    order, blocks = moe.plan(i["ids"], 8)
    expert, begin, end = np.array(blocks, np.uint32).T
    return {"order": order, "expert": expert, "begin": begin, "end": end}


def of_moe_combine(i: Inputs) -> Outputs:
    return {"x": i["x"] + moe.combine(*wide(i["d"], i["weights"], i["s"], i["shared_gate"]))}


def settings_of(i: Inputs, row: int) -> sampling.Sampling:
    r, counts = i["rows"][row], i["counts"][row]
    bits = np.unpackbits(i["mask"][row].view(np.uint8), bitorder="little")[: i["logits"].shape[1]].astype(bool)
    return sampling.Sampling(
        temperature=float(r["temperature"]), top_k=int(r["top_k"]), top_p=float(r["top_p"]), min_p=float(r["min_p"]),
        presence_penalty=float(r["presence_penalty"]), frequency_penalty=float(r["frequency_penalty"]),
        repetition_penalty=float(r["repetition_penalty"]), seed=SEEDS[row],
        bias=[(int(t), float(v)) for t, v in i["bias"][r["bias_begin"] : r["bias_end"]]],
        allowed=bits if r["uses_mask"] else None,
        in_prompt=frozenset(np.flatnonzero(counts >> 31).tolist()) if r["uses_counts"] else frozenset(),
        in_output={int(t): int(counts[t] & 0x7FFFFFFF) for t in np.flatnonzero(counts & 0x7FFFFFFF)}
        if r["uses_counts"] else {},
    )  # fmt: skip


def of_sample_scan(i: Inputs) -> Outputs:
    adjusted = np.stack([sampling.adjust(i["logits"][row], settings_of(i, row)) for row in range(3)])
    outputs: dict[str, list[Any]] = {name: [] for name in ("raw_max", "raw_sum", "best", "best_id")}
    for row in range(3):
        for begin in (0, 1024):
            raw, mine = (x[row, begin : begin + 1024].astype(np.float64) for x in (i["logits"], adjusted))
            outputs["raw_max"].append(raw.max())
            outputs["raw_sum"].append(np.exp(raw - raw.max()).sum())
            outputs["best"].append(mine.max())
            outputs["best_id"].append(begin + int(mine.argmax()))
    return {"adjusted": adjusted[[0, 2]], **{name: np.array(values) for name, values in outputs.items()}}


def of_sample_pick(i: Inputs) -> Outputs:
    logits, rows = i["logits"], i["rows"]
    drawn = [sampling.draw(logits[row], settings_of(i, row), int(i["step"]["position"][row])) for row in range(3)]
    logprobs = [sampling.log_softmax(logits[row]) for row in range(3)]
    top_ids, top_logprobs = np.zeros((3, 20), np.uint32), np.zeros((3, 20))
    for row in range(3):
        count = int(rows["num_logprobs"][row])
        top_ids[row, :count] = np.argsort(-logits[row], kind="stable")[:count]
        top_logprobs[row, :count] = logprobs[row][top_ids[row, :count]]
    return {
        "tokens": np.array(drawn),
        "token_id": np.array(drawn),
        "logprob": np.array([logprobs[row][drawn[row]] for row in range(3)]),
        "num_logprobs": rows["num_logprobs"],
        "top_ids": top_ids,
        "top_logprobs": top_logprobs,
    }


REFERENCE_OF: dict[str, Callable[[Inputs], Outputs]] = {
    "embed": lambda i: {"x": i["w"].dense[i["tokens"]]},
    "rms_norm": lambda i: {"y": norm(i["x"], i["gain"])},
    "gdn_in": lambda i: of_projection(i, ["qkv", "z", "ba"]),
    "attn_in": lambda i: of_projection(i, ["q", "gate", "k", "v"]),
    "router": lambda i: of_projection(i, ["router_logits", "shared_gate"]),
    "shared_down": lambda i: of_projection(i, ["s"]),
    "gdn_out": of_gdn_out,
    "gdn_out_tile": of_residual,
    "attn_out": of_residual,
    "shared_up": of_shared_up,
    "lm_head": of_lm_head,
    "attn_prep": of_attn_prep,
    "attn_split": of_attn_split,
    "attn_combine": of_attn_combine,
    "attn_prefill": of_attn_prefill,
    "gdn_step": of_gdn_step,
    "gdn_conv": of_gdn_conv,
    "gdn_chunk": of_gdn_chunk,
    "gdn_scan": of_gdn_scan,
    "gated_norm": of_gated_norm,
    "experts_up": of_experts_up,
    "experts_up_tile": of_experts_up_tile,
    "experts_down": of_experts_down,
    "experts_down_tile": of_experts_down_tile,
    "topk": of_topk,
    "moe_plan": of_moe_plan,
    "moe_combine": of_moe_combine,
    "sample_scan": of_sample_scan,
    "sample_pick": of_sample_pick,
}


def references() -> dict[str, Array]:
    """What is stored: for each output of each case up to 512 values, f32 or (exact results) u32."""
    stored: dict[str, Array] = {}
    for case in all_cases():
        outputs = reference_of(case)
        for name, output in case.outputs.items():
            like = output.of(case.buffers)
            values = outputs[name].astype(like.dtype).reshape(like.shape)
            stored[f"{case.kernel}/{name}"] = sampled(values)
    return stored


def reference_of(case: Case) -> Outputs:
    op = case.kernel.partition("_f32")[0]
    while op not in REFERENCE_OF:
        op = op.rpartition("_")[0]  # without the weight formats
    with_tile = f"{op}_tile"
    is_tile = case.kernel.endswith("_tile") and with_tile in REFERENCE_OF
    return REFERENCE_OF[with_tile if is_tile else op](case.inputs)


if __name__ == "__main__":
    save_file(references(), REFERENCES)
    print(f"{REFERENCES.name}: {REFERENCES.stat().st_size / 1024:.0f} KiB")
