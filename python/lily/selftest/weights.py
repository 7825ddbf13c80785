"""Quantised weights: what a kernel binds, and their exact values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .numbers import Numbers
from .tables import Array


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight [..., rows, columns] in groups of 64 columns."""

    codes: Array  # u8 [..., rows, columns * bits / 8]
    scales: Array  # u16 (the bits of a BF16) or f32 [..., rows, columns / 64]
    biases: Array
    dense: NDArray[np.float64]

    @property
    def ranges(self) -> list[Array]:
        return [self.codes, self.scales, self.biases]


def quantised(form: str, codes: NDArray[np.uint8], scales: Array, biases: Array) -> Weight:
    """The weight scales * codes + biases of a format: codes are packed, pairs cut to BF16 unless the format is wide."""
    bits, is_wide = int(form[1]), form.endswith("w")
    words = [np.asarray(pair, np.float32).view(np.uint32) for pair in (scales, biases)]
    if not is_wide:
        words = [pair & np.uint32(0xFFFF0000) for pair in words]
    exact = [pair.view(np.float32).astype(np.float64).repeat(64, axis=-1) for pair in words]
    stored = [pair.view(np.float32) if is_wide else (pair >> 16).astype(np.uint16) for pair in words]
    packed = codes if bits == 8 else codes[..., 0::2] | (codes[..., 1::2] << 4)
    return Weight(np.ascontiguousarray(packed), stored[0], stored[1], exact[0] * codes + exact[1])


def weight(n: Numbers, form: str, *shape: int) -> Weight:
    """Random codes and pairs; half of the scales are negative."""
    top = 2 ** int(form[1]) - 1
    codes = n.integers(top + 1, *shape).astype(np.uint8)
    pairs = (*shape[:-1], shape[-1] // 64)
    signs = 1.0 - 2.0 * n.integers(2, *pairs)
    scales = (signs * n.uniform(*pairs, low=0.5, high=1.5) / (4 * top)).astype(np.float32)
    biases = (-scales * top * n.uniform(*pairs, low=0.25, high=0.75)).astype(np.float32)
    return quantised(form, codes, scales, biases)
