"""A kernel case: one dispatch, and what of its buffers is compared how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..numbers import Numbers
from ..tables import Array

# Budgets of docs/design/model.md, section 6, in float32 mode. 0 means exactly.
COPY: Final = 2e-7
ROWS: Final = 1e-6
PRODUCT: Final = 2e-6
CORE: Final = 2e-6
SUM: Final = 3e-6
CHUNK: Final = 5e-6

STEP: Final = 3  # rows of a step
TILE: Final = 70  # rows of a prefill chunk


@dataclass(frozen=True, slots=True)
class Output:
    """What a kernel writes: the part `at` of buffer number `index`, and how far from the reference it may be.

    derive: of that part, where devices may write different numbers that mean the same.
    """

    index: int
    tolerance: float
    at: Any = ...
    derive: Callable[[Array], Array] | None = None

    def of(self, buffers: Sequence[Array]) -> Array:
        part = np.asarray(buffers[self.index][self.at])
        return part if self.derive is None else self.derive(part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One dispatch. kernel: the name of its float32 form. inputs: by name, for the reference.

    buffers: as the kernel binds them, before it runs, in float32; where other precisions keep halves, halves can hold
    the values.
    """

    kernel: str
    sizes: Mapping[str, int]
    args: bytes
    extent: tuple[int, int, int]
    buffers: list[Array]
    outputs: Mapping[str, Output]
    inputs: Mapping[str, Any] = field(default_factory=dict)


def gain_of(n: Numbers, width: int) -> NDArray[np.float32]:
    return n.uniform(width, low=0.5, high=1.5)
