"""What every kernel test needs: model sizes, packed arguments and rows, quantised weights, the error measure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lily import _core
from lily.selftest.precision import halves_of
from lily.selftest.tables import (  # noqa: F401  # for the tests
    BIAS_ENTRY,
    EXPERT_BLOCK,
    FLAGS,
    FORMATS,
    NO_EXPERT,
    NO_SAMPLE,
    PAGE_TOKENS,
    SAMPLE_BLOCK,
    SAMPLE_RESULT,
    SAMPLE_ROW,
    STEP_ROW,
    Array,
    pack,
    rms_ratio,
    step_rows,
    unwritten,
)
from lily.selftest.tables import RMS_NORM_EPS as EPS
from lily.selftest.tables import SMALL as NANO  # noqa: F401  # ModelConstants of the smallest test checkpoint
from lily.selftest.weights import Weight, quantised
from tools.msl.preamble import SIZES as REAL  # noqa: F401  # of Qwen3.6-35B-A3B; a test changes what it needs


@dataclass(frozen=True)
class Run:
    """A device under test, in one of its precisions."""

    device: str  # "cpu", "metal"
    debug: str  # its debug switches
    activation: str  # "f32", "i16", "f16"
    threads: int = 2  # of the cpu device
    devices: dict[frozenset[tuple[str, int]], _core.Device] = field(default_factory=dict)  # by their sizes
    ran: set[str] = field(default_factory=set)  # names of the kernels

    def __call__(
        self, kernel: str, sizes: Mapping[str, int], args: bytes, buffers: Sequence[Array], extent: tuple[int, int, int]
    ) -> None:
        """Run one dispatch and update the buffers that it writes. `kernel` is the float32 form's name; buffers are
        given as float32 and rounded where this precision keeps halves."""
        form = "_tile" if kernel.endswith("_tile") else ""
        stem = kernel.removesuffix(form).removesuffix("_f32")
        name = f"{stem}_{self.activation}{form}"
        key = frozenset(sizes.items())
        if key not in self.devices:
            debug = f"{self.debug},threads={self.threads}" if self.device == "cpu" else self.debug
            self.devices[key] = _core.Device(self.device, sizes=sizes, rms_norm_eps=EPS, debug=debug)
        halves = halves_of(name, self.activation)
        # The binding takes plain numbers: table rows go as their bytes.
        plain = [
            buffer.astype(np.float16) if i in halves else buffer.view(np.uint8) if buffer.dtype.names else buffer
            for i, buffer in enumerate(buffers)
        ]
        self.devices[key].run(name, args, plain, extent)
        self.ran.add(name)
        for i in halves:
            if buffers[i].flags.writeable:
                buffers[i][...] = plain[i]

    def rounded(self, values: Array) -> Array:
        """float32 values that this precision can hold: inputs whose rounding must not count as an error."""
        return values if self.activation == "f32" else values.astype(np.float16).astype(np.float32)

    def bound(self, float32: float, half: float = 5e-4) -> float:
        """The bound of this precision. docs/design/model.md, section 6: half is that of float16 operands."""
        return float32 if self.activation == "f32" else half


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> NDArray[np.float32]:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def random_weight(rng: np.random.Generator, form: str, *shape: int) -> Weight:
    """Random codes and pairs of format `form`; half of the scales are negative, var(w) is about 1 / columns."""
    columns, top = shape[-1], 2 ** int(form[1]) - 1
    codes = rng.integers(0, top + 1, shape, dtype=np.uint8)
    pairs = (*shape[:-1], columns // 64)
    scales = rng.choice([-1.0, 1.0], pairs) * rng.uniform(0.5, 1.5, pairs) * (12 / columns) ** 0.5 / top
    biases = -scales * top * rng.uniform(0.3, 0.7, pairs)
    return quantised(form, codes, scales, biases)
