"""Collect plain English sentences from the corpus, to fill the documents of the synthetic tasks.

usage: filler.py --corpus corpus.jsonl --out filler.json
"""

import argparse
import json
import random
import re
from pathlib import Path

ap = argparse.ArgumentParser()
ap.add_argument("--corpus", required=True)
ap.add_argument("--out", required=True)
ap.add_argument("--n", type=int, default=9000)
a = ap.parse_args()
SRC = (
    "debian",
    "developers-reference",
    "gnome",
    "postgresql",
    "git-doc",
    "python3.11-doc",
    "linux-doc",
    "python-django",
    "rust-doc",
    "apache2",
    "sqlite3",
)
out = {"train": set(), "test": set()}
with open(a.corpus) as lines:
    docs = [json.loads(line) for line in lines]
for d in docs:
    if not d["src"].startswith(SRC):
        continue
    for p in re.split(r"\n\s*\n", d["text"]):
        p = " ".join(p.split())
        for s in re.findall(r"(?:(?<=^)|(?<=[.!?] ))[A-Z][a-z][^.!?:]{40,170}\.(?= |$)", p):
            if re.fullmatch(r"[A-Za-z ,'()-]+\.", s) and s.count(" ") >= 7:
                out[d["split"]].add(s)
r = random.Random(0)
res = {k: r.sample(sorted(v), min(len(v), a.n)) for k, v in out.items()}
Path(a.out).write_text(json.dumps(res, indent=0))
print({k: (len(out[k]), len(v)) for k, v in res.items()}, res["train"][:5])
