"""PTX of shaders, and the threadgroup memory that it says they need."""

from pathlib import Path

import pytest

from tools.msl.build import Source, ptx, threadgroup_bytes

SHADERS = Path(__file__).parent / "shaders"


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("reduce", {"row_sum": 128}),
        ("operations", {"operations": 0}),
        ("language", {"language_plain": 64 * 4 + 65 * 4 + 64 * 4, "language_twice": 64 * 4 + 65 * 4 + 64 * 4}),
        ("matrix", {"matrix": 2 * 16 * 32 * 2}),
        ("tensor", {"tensor_product": 0}),
        ("sort", {"sort": 128 * 4 + 16}),
    ],
)
def test_threadgroup_memory(name, kernels):
    assert threadgroup_bytes(ptx(Source.read(SHADERS / f"{name}.metal"))) == kernels


def test_instructions():
    text = ptx(Source.read(SHADERS / "operations.metal"))
    assert ".target sm_90" in text
    assert "shfl.sync.bfly" in text and "vote.sync.ballot" in text
    assert ".local" not in text  # everything is inlined: small arrays stay in registers
    assert "mma.sync" in ptx(Source.read(SHADERS / "matrix.metal"))
    assert "mma.sync" in ptx(Source.read(SHADERS / "tensor.metal"))


def test_arguments_by_value_and_by_address():
    text = ptx(Source.read(SHADERS / "reduce.metal"))
    head = text[text.index(".entry msl_entry_row_sum(") :]
    head = head[: head.index(")")]
    assert (head.count(".param .u64"), head.count(".param .u32")) == (2, 1)
