"""lily against mlx-lm, an outside implementation that reads the same files: logits of lily-nano in float32."""

from pathlib import Path

import numpy as np
import pytest

from lily import Engine

REASON = "mlx-lm is not installed: pip install --group oracle"
# Two float32 implementations of this model, neither of them lily, differ by an RMS ratio of 8e-7.
BOUND = 2e-5


@pytest.mark.oracle
def test_logits_equal_those_of_mlx_lm(lily_nano: Path) -> None:
    mx = pytest.importorskip("mlx.core", reason=REASON)
    mlx_lm = pytest.importorskip("mlx_lm", reason=REASON)
    prompt, continuation = [index * 7919 % 3800 for index in range(16)], [17, 4000, 523, 8]

    model, _ = mlx_lm.load(str(lily_nano))
    model.set_dtype(mx.float32)
    every_row = np.array(model(mx.array([prompt + continuation])))[0]
    expected = every_row[len(prompt) - 1 :]

    with Engine(lily_nano, dtype="float32", max_context=64) as engine:
        session = engine.session()
        session.prefill(prompt)
        rows = [session.logits.copy()]
        for token_id in continuation:
            session.decode(token_id)
            rows.append(session.logits.copy())
    got = np.stack(rows)

    assert np.isfinite(got).all()
    assert np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean()) < BOUND
    assert got.argmax(-1).tolist() == expected.argmax(-1).tolist()
