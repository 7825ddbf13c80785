"""Numbers that look random and are the same on every machine and with every version of NumPy."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)


class Numbers:
    """SplitMix64 (Steele, Lea, Flood 2014): word n of a seed is the mix of seed + n · gamma."""

    def __init__(self, seed: int) -> None:
        self._state = np.uint64(seed)

    def words(self, count: int) -> NDArray[np.uint64]:
        with np.errstate(over="ignore"):
            z = self._state + _GAMMA * np.arange(1, count + 1, dtype=np.uint64)
            self._state += _GAMMA * np.uint64(count)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return np.asarray(z ^ (z >> np.uint64(31)))

    def uniform(self, *shape: int, low: float = -1.0, high: float = 1.0) -> NDArray[np.float32]:
        """Multiples of 2^-24 of the range, from `low` up to but not including `high`."""
        fractions = (self.words(int(np.prod(shape))) >> np.uint64(40)).astype(np.float64) / 2**24
        return (low + (high - low) * fractions).astype(np.float32).reshape(shape)

    def operand(self, *shape: int, low: float = -1.0, high: float = 1.0) -> NDArray[np.float32]:
        """As uniform, in multiples of 2^-11 of the range: with ranges of a power of two float16 holds them exactly."""
        fractions = (self.words(int(np.prod(shape))) >> np.uint64(53)).astype(np.float64) / 2**11
        return (low + (high - low) * fractions).astype(np.float32).reshape(shape)

    def integers(self, high: int, *shape: int) -> NDArray[np.uint32]:
        """0 .. high - 1."""
        return (self.words(int(np.prod(shape))) % np.uint64(high)).astype(np.uint32).reshape(shape)

    def permutation(self, count: int) -> NDArray[np.uint32]:
        return np.argsort(self.words(count), kind="stable").astype(np.uint32)
