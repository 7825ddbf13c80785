"""Worker that keeps writing shards of synthetic chat samples.

usage: stream.py DATA_DIR SHARD_DIR SEED MAX_SHARDS

A shard is an .npz with ids (uint16; bit 15 set = the model has to write this token) and start (sample starts).
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from render import pieces
from tasks import Gen


def shard(g, tok, n_tokens, rng):
    eot = tok.token_to_id("<|endoftext|>")
    out, st, n = [], [], 0
    while n < n_tokens:
        ss = [pieces(g.sample(), compact=rng.random() < 0.3) for _ in range(400)]
        enc = iter(tok.encode_batch_fast([t for s in ss for t, _ in s], add_special_tokens=False))
        for s in ss:
            st.append(n)
            for _, learn in s:
                x = np.array(next(enc).ids, dtype=np.uint16)
                out.append(x | 0x8000 if learn else x)
                n += len(x)
            out.append(np.array([eot], dtype=np.uint16))
            n += 1
    return np.concatenate(out), np.array(st, dtype=np.int64)


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    data, dst, seed, most = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    tok = Tokenizer.from_file(os.path.join(data, "tokenizer.json"))
    test = seed < 0
    filler = json.loads(Path(data, "filler.json").read_text())
    g = Gen(seed, filler["test" if test else "train"], test=test)
    for k in range(most):
        ids, st = shard(g, tok, 1_000_000 if k == 0 or test else 2_000_000, g.r)
        p = os.path.join(dst, f"{'test' if test else 'train'}_{abs(seed)}_{k}")
        np.savez(p + ".tmp.npz", ids=ids, start=st)
        os.rename(p + ".tmp.npz", p + ".npz")
