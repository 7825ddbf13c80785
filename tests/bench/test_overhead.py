"""The overhead arm times all it names, and its model is lily-nano with more tokens."""

import json
from pathlib import Path

import pytest

from bench import overhead, overhead_model
from lily import Engine


def test_a_wider_vocabulary_writes_the_same_tokens(tmp_path: Path) -> None:
    folder = overhead_model.make(tmp_path, 5000)
    assert folder.name == "lily-nano-5000"
    with Engine("lily-nano", max_context=512, progress=False) as nano:
        prompt = nano.tokenize("Once upon a time")
        expected = nano.generate(prompt, temperature=0, max_tokens=8).token_ids
    with Engine(folder, max_context=512, progress=False) as engine:
        # Repeated rows tie, and the first one wins.
        assert engine.generate(prompt, temperature=0, max_tokens=8).token_ids == expected
        joined = engine.tokenizer.id_to_bytes[4500].decode(errors="replace")
        assert engine.detokenize(engine.tokenize(f"x {joined}")) == f"x {joined}"
        assert len(set(engine.tokenizer.id_to_bytes)) >= 4996  # all but some that are no whole characters
        assert engine.tokenizer.added_tokens["<|im_end|>"] in engine.stop_token_ids
        assert min(engine.tokenizer.added_tokens.values()) == 5000 - 26


def test_every_case_is_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["overhead", "--tokens", "16", "--context", "64"])
    overhead.main()
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    for name in ("python", "python_json", "python_xml", "python_json_mask", "python_xml_mask", "python_grammar"):
        assert metrics[f"{name}_median_us"] > 0
    assert metrics["python_xml_mask_max_us"] >= metrics["python_xml_mask_p95_us"]
