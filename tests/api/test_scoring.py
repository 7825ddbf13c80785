"""prompt_logprobs and score, against the logits of a session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lily import ContextLengthError, Engine
from lily.scoring import log_softmax
from tests.oracles import sample
from tests.oracles.forward import forward

TEXT = "The archive keeps the weekly list."


def expected_logprobs(engine: Engine, token_ids: list[int]) -> list[float]:
    """Log-probability of each token but the first, from a prefill of everything before it."""
    out = []
    for end in range(1, len(token_ids)):
        with engine.prefill(token_ids[:end]) as session:
            logits = session.logits.astype(np.float64)
        out.append(float(logits[token_ids[end]] - np.log(np.sum(np.exp(logits)))))
    return out


def test_log_softmax_does_not_overflow() -> None:
    np.testing.assert_allclose(log_softmax(np.array([1e4, 1e4], np.float32)), np.log([0.5, 0.5]))


def test_prompt_logprobs_equal_the_sessions(engine: Engine) -> None:
    token_ids = engine.tokenize(TEXT)
    engine.prefix_cache.clear()
    plain = engine.generate(TEXT, temperature=0, max_tokens=5, logprobs=1)
    result = engine.generate(TEXT, temperature=0, max_tokens=5, logprobs=1, prompt_logprobs=2)
    assert plain.prompt_logprobs is None and result.prompt_logprobs is not None
    assert result.token_ids == plain.token_ids and result.usage == plain.usage
    first, *rest = result.prompt_logprobs
    assert first is None and [entry.token_id for entry in rest if entry] == token_ids[1:]
    # A prompt of one token is a step, with operands of its own precision: half mode, as this device has it.
    np.testing.assert_allclose(
        [entry.logprob for entry in rest if entry], expected_logprobs(engine, token_ids), atol=3e-3
    )
    assert all(entry is not None and len(entry.top_logprobs) == 2 for entry in rest)
    chunks = list(engine.stream(TEXT, temperature=0, max_tokens=2, prompt_logprobs=0))
    assert chunks[0].prompt_logprobs is None
    assert [entry and entry.top_logprobs for entry in chunks[-1].prompt_logprobs or ()] == [None] + [()] * len(rest)


def test_logprobs_are_log_softmax_of_the_reference(nano_folder: Path) -> None:
    """Within 1e-4 of the float64 reference, of the prompt and of the answer, chosen and alternative tokens."""
    with Engine("lily-nano", max_context=128, dtype="float32", prefix_cache_bytes=0, progress=False) as engine:
        result = engine.generate(
            TEXT, temperature=0.8, seed=4, max_tokens=8, ignore_eos=True, logprobs=3, prompt_logprobs=3
        )
    token_ids = [*result.prompt_token_ids, *result.token_ids]
    reference = [sample.log_softmax(row) for row in forward(nano_folder, token_ids)]
    entries = [*(result.prompt_logprobs or ())[1:], *(result.logprobs or ())]
    assert len(entries) == len(token_ids) - 1
    for token_id, entry, row in zip(token_ids[1:], entries, reference, strict=False):
        assert entry is not None and entry.token_id == token_id and len(entry.top_logprobs) == 3
        for one in (entry, *entry.top_logprobs):
            assert abs(one.logprob - row[one.token_id]) < 1e-4
        best = [row[one.token_id] for one in entry.top_logprobs]
        np.testing.assert_allclose(best, np.sort(row)[:-4:-1], atol=1e-4)


def test_prompt_logprobs_of_one_token_and_with_a_grammar(engine: Engine) -> None:
    assert engine.generate([5], max_tokens=1, prompt_logprobs=0).prompt_logprobs == (None,)
    result = engine.generate(TEXT, prompt_logprobs=0, choice=["yes", "no"], repetition_penalty=1.1)
    assert result.text in ("yes", "no") and len(result.prompt_logprobs or ()) == len(engine.tokenize(TEXT))


def test_chat_refuses_prompt_logprobs(engine: Engine) -> None:
    with pytest.raises(ValueError, match="generate and stream"):
        engine.chat([{"role": "user", "content": "x"}], prompt_logprobs=1)


def test_scores_are_sums_over_the_tokens_of_a_label(engine: Engine) -> None:
    labels = [" yes", " no, and the list is long", [5], " no, and"]
    token_ids = [engine.tokenize(label) if isinstance(label, str) else label for label in labels]
    assert max(map(len, token_ids)) > 2
    prompt = engine.tokenize(TEXT)
    expected = [sum(expected_logprobs(engine, prompt + ids)[len(prompt) - 1 :]) for ids in token_ids]
    np.testing.assert_allclose(engine.score(TEXT, labels), expected, atol=5e-3)
    before = dict(engine.runtime.memory_bytes)
    engine.score(TEXT, [" yes"])
    assert dict(engine.runtime.memory_bytes) == before


def test_bad_labels(engine: Engine) -> None:
    for labels in ([], "yes", ["yes", ""], [[]]):
        with pytest.raises(ValueError, match="label"):
            engine.score(TEXT, labels)
    with pytest.raises(ValueError, match="no tokens"):
        engine.score("", ["a"])
    with pytest.raises(ContextLengthError):
        engine.score([1] * 1020, [[1] * 5])
