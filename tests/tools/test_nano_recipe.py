"""The recipe of lily-nano still makes the evaluation set and the chat template that are shipped with the weights."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

RECIPE = Path(__file__).parents[2] / "tools" / "nano"


def run(script: str, *arguments: str) -> None:
    subprocess.run([sys.executable, RECIPE / script, *arguments], check=True, timeout=1200)


def test_tasks_regenerate_the_evaluation_set(lily_nano: Path, tmp_path: Path) -> None:
    filler, made = tmp_path / "filler.json", tmp_path / "eval.jsonl"
    run("own_filler.py", "--out", str(filler))
    run("tasks.py", "--filler", str(filler), "--eval", "207", "--seed", "424201", "--out", str(made))
    assert made.read_bytes() == (lily_nano / "eval.jsonl").read_bytes()


def test_template_of_the_recipe_is_the_shipped_one(lily_nano: Path) -> None:
    assert (RECIPE / "chat_template.jinja").read_bytes() == (lily_nano / "chat_template.jinja").read_bytes()


def test_special_tokens_of_the_recipe_are_the_shipped_ones(lily_nano: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    # All words of three of these letters: enough different pairs for the trainer to fill its vocabulary.
    words = " ".join(map("".join, itertools.product("abcdefghijklmnopqrstuv", repeat=3)))
    corpus.write_text(json.dumps({"src": "test", "split": "train", "text": words}) + "\n")
    run("tokenizer.py", "--corpus", str(corpus), "--out", str(tmp_path))
    made = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert made == json.loads((lily_nano / "tokenizer_config.json").read_text())
