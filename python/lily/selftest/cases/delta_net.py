"""Cases of the delta net. Layer 1 of 2; slot 0 is empty."""

from __future__ import annotations

from typing import Final

import numpy as np

from ..numbers import Numbers
from ..tables import SMALL, Array, pack, step_rows, unwritten
from .case import CHUNK, ROWS, STEP, SUM, TILE, Case, Output, gain_of

DELTA: Final = SMALL | {"num_linear_layers": 2}
CHANNELS: Final = 2 * 2 * 64 + 4 * 64


def delta_layer(n: Numbers) -> dict[str, Array]:
    layer = {
        "conv_w": n.uniform(CHANNELS, 4),
        "a_log": n.uniform(4),
        "dt_bias": n.uniform(4, low=-3, high=-1),
        "conv_state": n.uniform(6, 2, 3, CHANNELS),
        "state": n.uniform(6, 2, 4, 64, 64),
    }
    layer["conv_state"][0] = layer["state"][0] = 0
    return layer


def gdn_step(n: Numbers, kernel: str) -> Case:
    layer = delta_layer(n)
    qkv, ba = n.operand(STEP, CHANNELS), n.uniform(STEP, 2, 4, low=-2, high=2)
    step = step_rows(STEP, slot_in=[3, 0, 1], slot_out=[4, 1, 2])  # row 2 goes on where row 1 ends
    before = {name: values.copy() for name, values in layer.items()}
    out = np.s_[[4, 1, 2], 1]
    return Case(
        kernel=kernel, sizes=DELTA, args=pack(STEP, 1), extent=(64, 4, 1),
        buffers=[step, qkv, ba, layer["conv_w"], layer["a_log"], layer["dt_bias"], layer["conv_state"], layer["state"],
                 unwritten(STEP, 4, 64)],
        outputs={"o": Output(8, SUM), "conv_state": Output(6, 0, out), "state": Output(7, SUM, out)},
        inputs=before | {"qkv": qkv, "ba": ba},
    )  # fmt: skip


def gdn_conv(n: Numbers, kernel: str) -> Case:
    layer = delta_layer(n)
    qkv, ba = n.operand(TILE, CHANNELS), n.uniform(TILE, 2, 4, low=-4, high=4)
    before = {name: values.copy() for name, values in layer.items()}
    return Case(
        kernel=kernel, sizes=DELTA, args=pack(TILE, 1), extent=(2, TILE, 1),
        buffers=[step_rows(1, slot_in=3, slot_out=1), qkv, ba, layer["conv_w"], layer["a_log"], layer["dt_bias"],
                 layer["conv_state"], unwritten(TILE, 2, 64), unwritten(TILE, 2, 64), unwritten(TILE, 4, 64),
                 unwritten(TILE, 4), unwritten(TILE, 4)],
        outputs={"conv_state": Output(6, 0, np.s_[1, 1]),
                 **{name: Output(7 + i, ROWS) for i, name in enumerate(("q", "k", "v", "g", "beta"))}},
        inputs=before | {"qkv": qkv, "ba": ba},
    )  # fmt: skip


def delta_inputs(n: Numbers) -> dict[str, Array]:
    unit = (3 / 64) ** 0.5  # rows of 64 values have a length near 1
    return {
        "q": n.uniform(TILE, 2, 64) * np.float32(unit / 8),
        "k": n.uniform(TILE, 2, 64) * np.float32(unit),
        "v": n.uniform(TILE, 4, 64),
        "g": n.uniform(TILE, 4, low=-0.2, high=0),
        "beta": n.uniform(TILE, 4, low=0.05, high=0.95),
    }


def gdn_chunk(n: Numbers, kernel: str) -> Case:
    inputs = delta_inputs(n)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(4, 2, 1),
        buffers=[*inputs.values(), unwritten(TILE, 4, 64), unwritten(TILE, 4, 64), unwritten(TILE, 4, 64)],
        outputs={name: Output(5 + i, CHUNK) for i, name in enumerate(("u", "w", "qk"))}, inputs=inputs,
    )  # fmt: skip


def gdn_scan(n: Numbers, kernel: str) -> Case:
    """u, w and the lower triangle of qk are any numbers here: the kernel's own part is the recurrence over chunks."""
    inputs = delta_inputs(n)
    parts = {"u": n.uniform(TILE, 4, 64), "w": n.uniform(TILE, 4, 64, low=-0.1, high=0.1), "qk": n.uniform(TILE, 4, 64)}
    parts["qk"] *= np.arange(64) <= (np.arange(TILE) % 64)[:, None, None]
    state = delta_layer(n)["state"]
    inputs |= parts | {"state": state.copy()}
    return Case(
        kernel=kernel, sizes=DELTA, args=pack(TILE, 1), extent=(64, 4, 1),
        buffers=[step_rows(1, slot_in=3, slot_out=1), inputs["q"], inputs["k"], *parts.values(), inputs["g"], state,
                 unwritten(TILE, 4, 64)],
        outputs={"o": Output(8, CHUNK), "state": Output(7, CHUNK, np.s_[1, 1])}, inputs=inputs,
    )  # fmt: skip


def gated_norm(n: Numbers, kernel: str) -> Case:
    o, z, gain = n.uniform(TILE, 4, 64), n.operand(TILE, 4, 64, low=-4, high=4), gain_of(n, 64)
    return Case(
        kernel=kernel, sizes=SMALL, args=pack(TILE), extent=(TILE, 1, 1), buffers=[o, z, gain, unwritten(TILE, 256)],
        outputs={"y": Output(3, ROWS)}, inputs={"o": o, "z": z, "gain": gain},
    )  # fmt: skip
