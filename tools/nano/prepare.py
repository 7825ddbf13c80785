"""Turn the corpus into token files.

usage: prepare.py --corpus corpus.jsonl --tok DIR --out DIR

Writes text.bin (uint16 token ids, training split, documents joined by <|endoftext|>), text.start.npy (document starts)
and test.bin (held-out split).
"""

import argparse
import json
import os
import random

import numpy as np
from tokenizers import Tokenizer

ap = argparse.ArgumentParser()
ap.add_argument("--corpus", required=True)
ap.add_argument("--tok", required=True)
ap.add_argument("--out", required=True)
a = ap.parse_args()
tok = Tokenizer.from_file(os.path.join(a.tok, "tokenizer.json"))
eot = tok.token_to_id("<|endoftext|>")
sp = [t.content for t in tok.get_added_tokens_decoder().values()]
os.makedirs(a.out, exist_ok=True)
docs = {"train": [], "test": []}
with open(a.corpus) as lines:
    corpus = [json.loads(line) for line in lines]
for d in corpus:
    t = d["text"]
    if any(s in t for s in sp):
        continue  # special tokens must not come from text
    docs[d["split"]].append(t)
random.Random(0).shuffle(docs["train"])
for k, name in (("train", "text"), ("test", "test")):
    out, st, n = [], [], 0
    for i in range(0, len(docs[k]), 512):
        for e in tok.encode_batch_fast(docs[k][i : i + 512], add_special_tokens=False):
            ids = np.array([*e.ids, eot], dtype=np.uint16)
            st.append(n)
            n += len(ids)
            out.append(ids)
    np.concatenate(out).tofile(os.path.join(a.out, name + ".bin"))
    if k == "train":
        np.save(os.path.join(a.out, "text.start.npy"), np.array(st, dtype=np.int64))
    print(k, len(docs[k]), "documents", n, "tokens")
