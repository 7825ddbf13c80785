"""Train the lily-nano tokenizer (byte-level BPE, 4096 entries, Qwen's pre-tokenizer pattern and special token names).

usage: tokenizer.py --corpus corpus.jsonl --out DIR [--tasks-sample FILE]
"""

import argparse
import json
import os
import random
import shutil
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCAB = 4096
# the same order as in Qwen3.6; the flag says whether the token counts as "special" (left out when decoding)
SPECIAL = [
    ("<|endoftext|>", 1),
    ("<|im_start|>", 1),
    ("<|im_end|>", 1),
    ("<|object_ref_start|>", 1),
    ("<|object_ref_end|>", 1),
    ("<|box_start|>", 1),
    ("<|box_end|>", 1),
    ("<|quad_start|>", 1),
    ("<|quad_end|>", 1),
    ("<|vision_start|>", 1),
    ("<|vision_end|>", 1),
    ("<|vision_pad|>", 1),
    ("<|image_pad|>", 1),
    ("<|video_pad|>", 1),
    ("<tool_call>", 0),
    ("</tool_call>", 0),
    ("<|fim_prefix|>", 0),
    ("<|fim_middle|>", 0),
    ("<|fim_suffix|>", 0),
    ("<|fim_pad|>", 0),
    ("<|repo_name|>", 0),
    ("<|file_sep|>", 0),
    ("<tool_response>", 0),
    ("</tool_response>", 0),
    ("<think>", 0),
    ("</think>", 0),
]
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--corpus", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--tasks-sample")
    ap.add_argument("--bytes", type=float, default=24e6)
    a = ap.parse_args()
    rng = random.Random(0)
    with open(a.corpus) as lines:
        docs = [d["text"] for d in map(json.loads, lines) if d["split"] == "train"]
    rng.shuffle(docs)
    txt, n = [], 0
    for d in docs:
        txt.append(d[:60000])
        n += len(txt[-1])
        if n > a.bytes:
            break
    if a.tasks_sample:
        t = Path(a.tasks_sample).read_text()
        for s, _ in SPECIAL:
            t = t.replace(s, "\n")
        txt += [t[i : i + 50000] for i in range(0, len(t), 50000)] * 2
    tok = Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.train_from_iterator(
        txt,
        trainers.BpeTrainer(
            vocab_size=VOCAB - len(SPECIAL),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[],
            show_progress=False,
            limit_alphabet=256,
            max_token_length=16,
        ),
    )
    for s, f in SPECIAL:
        (tok.add_special_tokens if f else tok.add_tokens)([AddedToken(s, special=bool(f), normalized=False)])
    assert tok.get_vocab_size() == VOCAB, tok.get_vocab_size()
    os.makedirs(a.out, exist_ok=True)
    tok.save(os.path.join(a.out, "tokenizer.json"))
    ids = {s: tok.token_to_id(s) for s, _ in SPECIAL}
    config = {
        "tokenizer_class": "Qwen2TokenizerFast",
        "model_max_length": 262144,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        "split_special_tokens": False,
        "additional_special_tokens": [s for s, f in SPECIAL if f and s != "<|endoftext|>"],
        "added_tokens_decoder": {
            str(ids[s]): {
                "content": s,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "single_word": False,
                "special": bool(f),
            }
            for s, f in SPECIAL
        },
    }
    Path(a.out, "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "chat_template.jinja"), a.out)
    print("vocab", tok.get_vocab_size(), ids)
    s = "".join(txt[:50])[:500000]
    print("chars per token", round(len(s) / len(tok.encode(s).ids), 3))


if __name__ == "__main__":
    main()
