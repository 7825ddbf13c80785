"""Synthetic chat tasks for lily-nano: training samples and held-out evaluation items.

usage: tasks.py --filler filler.json --eval N --seed S --out eval.jsonl     write held-out evaluation items
       tasks.py --filler filler.json --sample N --out sample.txt            write rendered training samples

Training samples are written to be looked at, and for the tokenizer.

A sample is {"family", "messages", "tools", "thinking"}; the last message is the wanted reply.
Training samples and evaluation items come from the same generators, but:
- arithmetic and unit questions are split by a hash of their numbers (1 in 8 is evaluation only),
- names are split by a hash of first and last name, keys and values by a hash of the key,
- filler sentences for evaluation come from held-out documents.
"""

import argparse
import json
from pathlib import Path

from documents import Documents
from functions import Functions
from programs import Programs
from render import pieces
from words import SYS


class Gen(Documents, Functions, Programs):
    """Samples of all families: each is a method that gives messages without system, answer, reasoning and tools."""

    FAMILIES = (
        ("extract", 24),
        ("recall", 20),
        ("lists", 10),
        ("arith", 10),
        ("units", 5),
        ("tools", 18),
        ("chat", 7),
        ("memory", 7),
        ("code_task", 4),
    )

    def sample(self, fam=None):
        r = self.r
        fam = fam or r.choices([f for f, _ in self.FAMILIES], [w for _, w in self.FAMILIES])[0]
        think = r.random() < 0.35
        turns, ans, why, tools = getattr(self, fam)()
        ms = []
        if r.random() < 0.4:
            ms.append({"role": "system", "content": r.choice(SYS)})
        # An earlier, finished exchange.
        if fam in ("arith", "units", "lists", "chat", "code_task") and r.random() < 0.25:
            x = getattr(self, self.pick("arith", "units", "lists", "chat"))()
            ms += [{"role": "user", "content": x[0][-1][1]}, {"role": "assistant", "content": x[1]}]
        for t in turns:
            if t[0] == "call":
                m = {"role": "assistant", "content": "", "tool_calls": [t[1]]}
                if think:
                    m["reasoning_content"] = t[2]
                ms.append(m)
            else:
                ms.append({"role": t[0], "content": t[1]})
        m = (
            {"role": "assistant", "content": ans}
            if isinstance(ans, str)
            else {"role": "assistant", "content": "", "tool_calls": [ans]}
        )
        if think:
            m["reasoning_content"] = why
        return {"family": fam, "messages": [*ms, m], "tools": tools, "thinking": think}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--filler", required=True)
    ap.add_argument("--eval", type=int)
    ap.add_argument("--sample", type=int)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--out", required=True)
    a = ap.parse_args()
    fl = json.loads(Path(a.filler).read_text())
    with open(a.out, "w") as o:
        if a.sample:
            g = Gen(a.seed, fl["train"])
            for _ in range(a.sample):
                o.write("".join(t for t, _ in pieces(g.sample())) + "\n")
        else:
            g, fams, seen, i = Gen(a.seed, fl["test"], test=True), [f for f, _ in Gen.FAMILIES], set(), 0
            while i < a.eval:
                s = g.sample(fams[i % len(fams)])
                k = json.dumps(s["messages"][:-1])
                if k in seen or len(k) > 14000:
                    continue
                seen.add(k)
                m = s["messages"][-1]
                it = {
                    "id": f"{s['family']}-{i:03d}",
                    "family": s["family"],
                    "messages": s["messages"][:-1],
                    "tools": s["tools"],
                    "enable_thinking": s["thinking"],
                    "expected": m["content"],
                }
                if m.get("tool_calls"):
                    it["expected_call"] = {
                        "name": m["tool_calls"][0]["function"]["name"],
                        "arguments": m["tool_calls"][0]["function"]["arguments"],
                    }
                it["check"] = "call" if m.get("tool_calls") else "json" if s["family"] == "extract" else "exact"
                o.write(json.dumps(it, ensure_ascii=False) + "\n")
                i += 1


if __name__ == "__main__":
    main()
