"""Shaders on the CPU against NumPy, with lanes, simdgroups and threadgroups in both orders."""

from pathlib import Path

import numpy as np
import pytest

from tests.msl.runtime import KernelFault, counts, run

SHADERS = Path(__file__).parent / "shaders"
BOTH_ORDERS = pytest.mark.parametrize("reverse", [False, True])


def bfloat(values):
    """Bits of bfloat16, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat(bits):
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def kernel(body, parameters="device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]"):
    """A shader with one kernel `f`."""
    return f"#include <metal_stdlib>\nusing namespace metal;\nkernel void f({parameters}) {{ {body} }}\n"


def row_sum(x, source=SHADERS / "reduce.metal", threads=128, **options):
    y, columns = np.zeros_like(x), np.array([x.shape[1]], np.uint32)
    return run(source, "row_sum", [x, y, columns], groups=(len(x), 1, 1), threads=(threads, 1, 1), **options)[1]


@BOTH_ORDERS
@pytest.mark.parametrize("threads", [32, 96, 1024])
def test_reduction(reverse, threads):
    x = np.random.default_rng(0).uniform(0.5, 1.5, (5, 333)).astype(np.float32)
    y = row_sum(x, threads=threads, reverse=reverse)
    np.testing.assert_allclose(y, x / x.sum(1, dtype=np.float64, keepdims=True), rtol=1e-5)


@BOTH_ORDERS
def test_operations_of_a_simdgroup(reverse):
    threads = 64
    x = np.random.default_rng(1).standard_normal(threads).astype(np.float32)
    out, bits = np.zeros((16, threads), np.float32), np.zeros((2, threads), np.uint32)
    _, y, bits = run(
        SHADERS / "operations.metal", "operations", [x, out, bits], threads=(threads, 1, 1), reverse=reverse
    )
    lanes = np.arange(32)
    for first in (0, 32):
        v, got = x[first : first + 32].astype(np.float64), y[:, first : first + 32]
        expected = [
            np.full(32, v.sum()), np.full(32, v.max()), np.full(32, v.min()), v.cumsum(), v.cumsum() - v,
            v[(lanes * 5 + 3) % 32], v[lanes ^ 9], np.where(lanes < 29, np.roll(v, -3), v),
            np.where(lanes >= 3, np.roll(v, 3), v), np.full(32, v[17]), np.full(32, v[0]),
            np.full(32, (v > 2).any()), np.full(32, (v > -9).all()), np.roll(v, -30),
            np.full(32, 0.5 ** (v <= 0).sum()), np.full(32, (first + lanes).sum()),
        ]  # fmt: skip
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        assert (bits[0, first : first + 32] == ((v > 0) << lanes).sum()).all()
        both = np.bitwise_or.reduce(1 << ((first + lanes) % 7)) ^ np.bitwise_and.reduce((first + lanes) | 64)
        assert (bits[1, first : first + 32] == both).all()


@BOTH_ORDERS
@pytest.mark.parametrize("name", ["language_plain", "language_twice"])
def test_language(reverse, name):
    count, width = 1000, 64
    x = np.random.default_rng(2).standard_normal(count).astype(np.float32)
    settings = np.array([(count, 0.5, (1.25, -0.75))], [("count", "u4"), ("gain", "f4"), ("pair", "f4", 2)])
    table = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    groups = -(-count // width)
    y = run(
        SHADERS / "language.metal", name, [x, np.zeros(count, np.float32), settings, table],
        groups=(groups, 1, 1), threads=(width, 1, 1), reverse=reverse,
    )[1]  # fmt: skip
    a = np.pad(x, (0, groups * width - count)).reshape(groups, width)
    t = np.arange(width)
    b = a * np.array([1, 2, 4, 8], np.float32)[t % 4] + table[t % 4]
    q = b.reshape(groups, -1, 4)[:, t // 4]
    scaled = q[..., 1] * 3 * 0.5 + (a[:, :1] + 0.25) - x[0]
    s = scaled + q[..., 2] + q[..., 3] * (0.5 - 0.75)
    s = np.where(t > 16, np.clip(s, -50, 50), s)
    expected = s * (2 if name.endswith("twice") else 1) + groups * width * 0.001
    np.testing.assert_allclose(y, expected.reshape(-1)[:count], rtol=1e-5, atol=1e-5)


@BOTH_ORDERS
@pytest.mark.parametrize("operand", ["bfloat", "half", "float"])
def test_simdgroup_matrices(reverse, operand):
    m, n, k = 32, 48, 64
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((n, k)).astype(np.float32)
    stored = {"bfloat": bfloat, "half": np.float16, "float": np.float32}[operand]
    loaded = from_bfloat if operand == "bfloat" else np.float32
    a, b = stored(a), stored(b)
    size = np.array([m, n, k, 0], np.uint32)
    c = run(
        SHADERS / "matrix.metal", "matrix", [a, b, np.zeros((m, n), np.float32), size], groups=(n // 16, m // 16, 1),
        threads=(128, 1, 1), defines={"OPERAND": operand}, reverse=reverse,
    )[2]  # fmt: skip
    np.testing.assert_allclose(c, loaded(a).astype(np.float64) @ loaded(b).astype(np.float64).T, rtol=1e-4, atol=1e-4)


@BOTH_ORDERS
def test_a_simdgroup_matrix_turns(reverse):
    x = np.random.default_rng(3).standard_normal((10, 11)).astype(np.float32)
    source = kernel(
        "simdgroup_float8x8 m, n; const ulong2 from = ulong2(2, 1); "
        "simdgroup_load(m, x, 11, from); simdgroup_load(n, x, 11, from, true); "
        "simdgroup_store(m, y, 8, ulong2(0, 0), true); simdgroup_store(n, y + 64, 8); "
        "simdgroup_multiply(n, m, simdgroup_float8x8(2.0f)); simdgroup_store(n, y, 8, ulong2(0, 16));",
        "device const float* x [[buffer(0)]], device float* y [[buffer(1)]]",
    ).replace("<metal_stdlib>", "<metal_stdlib>\n#include <metal_simdgroup_matrix>", 1)
    y = run(source, "f", [x, np.zeros((3, 8, 8), np.float32)], reverse=reverse)[1]
    block = x[1:9, 2:10]
    np.testing.assert_array_equal(y, [block.T, block.T, 2 * block])


@BOTH_ORDERS
def test_tensor_operations_mask_the_edge(reverse):
    m, n, k = 40, 70, 48
    rng = np.random.default_rng(4)
    a, b = bfloat(rng.standard_normal((m, k))), bfloat(rng.standard_normal((n, k)))
    size = np.array([m, n, k, 0], np.uint32)
    c = run(
        SHADERS / "tensor.metal", "tensor_product", [a, b, np.zeros((m, n), np.float32), size],
        groups=(3, 2, 1), threads=(128, 1, 1), reverse=reverse,
    )[2]  # fmt: skip
    expected = from_bfloat(a).astype(np.float64) @ from_bfloat(b).astype(np.float64).T * 2
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)


@BOTH_ORDERS
def test_atomics_and_scan(reverse):
    keys = np.random.default_rng(5).integers(0, 128, 1000).astype(np.uint32)
    buffers = [keys, np.zeros(1000, np.uint32), np.zeros(128, np.uint32), np.array([1000], np.uint32)]
    _, order, begin, _ = run(SHADERS / "sort.metal", "sort", buffers, threads=(128, 1, 1), reverse=reverse)
    assert (np.sort(order) == np.arange(1000)).all()
    assert (np.diff(keys[order].astype(int)) >= 0).all()
    assert (begin == np.searchsorted(np.sort(keys), np.arange(128))).all()


def test_bfloat_rounds_to_nearest_even():
    rng = np.random.default_rng(6)
    x = rng.integers(0, 2**32, 4096, dtype=np.uint32).view(np.float32)
    x = np.where(np.isfinite(x), x, np.float32(1))
    source = kernel(
        "y[i] = bfloat(x[i]);",
        "device const float* x [[buffer(0)]], device bfloat* y [[buffer(1)]], uint i [[thread_position_in_grid]]",
    )
    y = run(source, "f", [x, np.zeros(4096, np.uint16)], groups=(32, 1, 1), threads=(128, 1, 1))[1]
    assert (y == bfloat(x)).all()


def test_mathematics():
    x = np.linspace(0.1, 3, 64).astype(np.float32)
    expressions = {
        "exp(x)": np.exp, "log(x)": np.log, "sin(x)": np.sin, "cos(x)": np.cos, "tanh(x)": np.tanh, "sqrt(x)": np.sqrt,
        "rsqrt(x)": lambda v: 1 / np.sqrt(v), "exp2(x)": np.exp2, "log2(x)": np.log2, "pow(x, 1.5f)": lambda v: v**1.5,
        "fma(x, 2.0f, 1.0f)": lambda v: 2 * v + 1, "max(x, 1.0f)": lambda v: np.maximum(v, 1),
        "clamp(x, 0.5f, 2.0f)": lambda v: np.clip(v, 0.5, 2), "precise::exp(float2(x, x)).y": np.exp,
        "dot(float4(x), float4(1.0f, 2.0f, 3.0f, 4.0f))": lambda v: 10 * v, "abs(-x)": np.abs, "floor(x)": np.floor,
        "float(mulhi(uint(x * 1e6f), 1u << 20u))": lambda v: (v * np.float32(1e6)).astype(np.uint32) >> 12,
        "float(popcount(uint(x * 1000.0f)))": lambda v: [bin(int(e)).count("1") for e in v * np.float32(1000)],
        "float(clz(uint(x * 1000.0f)))": lambda v: [32 - int(e).bit_length() for e in v * np.float32(1000)],
    }  # fmt: skip
    body = "float x = y[i]; " + " ".join(f"y[{64 * n} + i] = {e};" for n, e in enumerate(expressions, 1))
    y = np.zeros((1 + len(expressions), 64), np.float32)
    y[0] = x
    y = run(kernel(body), "f", [y], threads=(64, 1, 1))[0]
    for row, (expression, reference) in zip(y[1:], expressions.items(), strict=True):
        np.testing.assert_allclose(row, reference(x), rtol=2e-6, err_msg=expression)


@pytest.mark.parametrize("math", ["safe", "relaxed", "fast"])
def test_math_modes(math):
    body = "const float x = y[i]; y[i] = exp(-x) / (1.0f + exp(-x)) + rsqrt(x);"
    x = np.linspace(0.5, 4, 64).astype(np.float32)
    y = run(kernel(body), "f", [x], threads=(64, 1, 1), math=math)[0]
    np.testing.assert_allclose(y, np.exp(-x) / (1 + np.exp(-x)) + 1 / np.sqrt(x), rtol=2e-6)


def test_positions_of_threads():
    parameters = (
        "device uint* y [[buffer(0)]], uint3 p [[thread_position_in_grid]], uint3 n [[threads_per_grid]], "
        "ushort2 t [[thread_position_in_threadgroup]], uint2 g [[threadgroups_per_grid]], "
        "uint i [[thread_index_in_threadgroup]]"
    )
    body = "y[p.x + n.x * (p.y + n.y * p.z)] = p.x + 100 * p.y + 10000 * p.z + 1000000 * (i == t.x + 8u * t.y) + g.x;"
    y = run(kernel(body, parameters), "f", [np.zeros((3, 8, 16), np.uint32)], groups=(2, 2, 3), threads=(8, 4, 1))[0]
    z, row, column = np.mgrid[0:3, 0:8, 0:16]
    assert (y == column + 100 * row + 10000 * z + 1000000 + 2).all()


def test_threads_without_synchronisation_never_park():
    before = counts()
    run(kernel("y[i] = float(i);"), "f", [np.zeros(4096, np.float32)], groups=(32, 1, 1), threads=(128, 1, 1))
    assert counts() == before


def test_a_compiled_shader_is_kept(monkeypatch):
    source = kernel("y[i] = 3.0f;")
    run(source, "f", [np.zeros(32, np.float32)])
    monkeypatch.setattr("tools.msl.build._run", lambda *_: pytest.fail("compiled again"))
    assert (run(source, "f", [np.zeros(32, np.float32)])[0] == 3).all()


def test_unknown_kernel():
    with pytest.raises(KernelFault, match="no kernel g"):
        run(kernel("y[i] = 0.0f;"), "g", [np.zeros(32, np.float32)])
