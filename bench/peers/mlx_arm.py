"""Arm: mlx-lm on its CPU backend; run by an interpreter that has mlx-lm (dependency group oracle). Very slow there."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

from bench.peers import measure


class MlxTimeline:
    """One prompt cache of a model."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.cache = model.make_cache()

    def prefill(self, token_ids: list[int]) -> None:
        # As mlx-lm does it: the head is computed for the last token only.
        if len(token_ids) > 1:
            self.model(mx.array([token_ids[:-1]]), cache=self.cache)
            mx.eval([part.state for part in self.cache])
        self.decode(token_ids[-1])

    def decode(self, token_id: int) -> None:
        self.row = self.model(mx.array([[token_id]]), cache=self.cache)[0, -1]
        mx.eval(self.row, [part.state for part in self.cache])

    def close(self) -> None:
        self.cache = None

    @property
    def logits(self) -> measure.F32:
        return np.array(self.row.astype(mx.float32))


def main() -> None:
    arguments = measure.options(__doc__ or "").parse_args()
    mx.set_default_device(mx.cpu)
    model, _ = load_model(Path(arguments.model))
    measure.measure(arguments, lambda: MlxTimeline(model))


if __name__ == "__main__":
    main()
