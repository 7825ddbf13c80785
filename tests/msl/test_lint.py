"""Each construct that C++ takes and Metal does not is found, with its line; good shaders have no findings."""

from pathlib import Path

import pytest

from tools.msl.build import Source
from tools.msl.lint import lint

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
KERNEL = (
    "kernel void f(device const bfloat* x [[buffer(0)]], device bfloat* y [[buffer(1)]], "
    "device float* z [[buffer(2)]], "
    "uint i [[thread_position_in_grid]]) {\n"
)


def findings(text):
    return [(finding.line, finding.message) for finding in lint(Source(text, "shader"))]


IN_A_KERNEL = [
    ("y[i] = z[i];", "implicit float to bfloat"),
    ("y[i] = 0.0f;", "implicit float to bfloat"),
    ("y[i] = i > 3 ? x[i] : bfloat(0.5f); y[i] = x[i] + x[i];", "arithmetic in bfloat"),
    ("bfloat m = x[i]; m += x[i];", "arithmetic in bfloat"),
    ("bfloat m = x[i]; z[i] = float(m * 2);", "arithmetic in bfloat"),
    ("z[i] = z[i] * 0.5;", "literal 0.5 needs an f or h"),
    ("double d = z[i];", "double is not MSL"),
    ("static int counter = 0; z[i] = float(counter);", "static local 'counter'"),
    ("static const float table[2] = {1.0f, 2.0f}; z[i] = table[i];", "static local 'table'"),
    ("float* p = nullptr; z[i] = *p;", "'p' points nowhere"),
    ("float v = z[i]; float& r = v; z[i] = r;", "'r' points nowhere"),
    ("threadgroup float t[4] = {0}; z[i] = t[0];", "cannot have an initialiser"),
    ("{ threadgroup float t[4]; z[i] = t[0]; }", "must be declared at the top of its kernel"),
    ("struct Pair { float a, b; };\nthreadgroup Pair t[4]; z[i] = t[i].a;", "must hold scalars or vectors"),
    ("again: if (z[i] > 0.0f) { z[i] -= 1.0f; goto again; }", "goto is not MSL"),
    ("thread float* p = new float; z[i] = *p;", "new is not MSL"),
    ('asm volatile("nop"); z[i] = 0.0f;', "asm is not MSL"),
    ("union { float f; uint u; } v; v.f = z[i]; z[i] = float(v.u);", "a union is not MSL"),
    ("z[i] = -INFINITY;", "large finite number"),
    ("z[i] = NAN;", "no NaN"),
    ("float v[i + 1]; v[i] = 0.0f; z[i] = v[i];", "variable length array"),
    ("if (z[i] > 0.0f) throw 1;", "throw is not MSL"),
]

AROUND_KERNELS = [
    ("int counter = 3;", "'counter' at program scope must be constant"),
    ("constant bfloat ZERO = 0.0f;", "implicit float to bfloat"),
    ("struct A { float x; };\nstruct B : A { float y; };", "a base class is not MSL"),
    ("struct A { virtual float f() const { return 1.0f; } };", "virtual is not MSL"),
    ("static float f(float x) { return x > 0.0f ? f(x - 1.0f) : x; }", "'f' calls itself"),
    (
        "float g(float x);\nstatic float f(float x) { return g(x); }\nfloat g(float x) { return f(x); }",
        "calls itself",
    ),
    ("static float f(const float* p) { return p[0]; }", "'p' points nowhere"),
    ("static float f(float (&v)[4]) { return v[0]; }", "'v' points nowhere"),
    ("struct S { float* p; };", "'p' points nowhere"),
    ("static float f() { threadgroup float t[4]; return t[0]; }", "must be declared in a kernel"),
    ("kernel void f(device float* y [[buffer(0)]], float z) { y[0] = z; }", "'z' has no attribute"),
    (
        "kernel void f(float* y [[buffer(0)]]) { y[0] = 1.0f; }",
        "must be a pointer or reference to device or constant",
    ),
    ("kernel void f(device float* y [[buffer(31)]]) { y[0] = 1.0f; }", "the last index is 30"),
    (
        "kernel void f(device float* y [[buffer(0)]], int i [[thread_position_in_grid]]) {}",
        "must be a uint or ushort",
    ),
    ("kernel void f(uint2 i [[thread_index_in_simdgroup]]) {}", "must be a uint or ushort"),
    ("kernel void f(uint i [[amplification_id]]) {}", "is not supported"),
    ("kernel void f(threadgroup float* t [[threadgroup(0)]]) {}", "declare threadgroup memory in the kernel"),
    ("template <uint N> [[kernel]] void f(device float* y [[buffer(0)]]) {}", "a kernel cannot be a template"),
    ("static float f(float x) {\n  return y;\n}", "undeclared identifier 'y'"),
]


@pytest.mark.parametrize(
    ("text", "message"), [*((f"{KERNEL}{body}\n}}", message) for body, message in IN_A_KERNEL), *AROUND_KERNELS]
)
def test_a_fault_is_found(text, message):
    found = findings(f"{HEAD}{text}\n")
    first = 3 + text.startswith(KERNEL)  # line of what is wrong, at the least
    assert any(message in what and line >= first for line, what in found), found


def test_a_finding_names_the_line_behind_macros_and_includes(tmp_path):
    (tmp_path / "common.h").write_text("#pragma once\n\nstatic float half_of(float x) { return x * 0.5; }\n")
    path = tmp_path / "f.metal"
    path.write_text(f'{HEAD}#include "common.h"\n#define BAD(v) \\\n  v = 0.25\n{KERNEL}\n  BAD(z[i]);\n}}\n')
    found = [(Path(f.file).name, f.line) for f in lint(Source.read(path))]
    assert ("common.h", 3) in found and ("f.metal", 8) in found


@pytest.mark.parametrize("path", sorted((Path(__file__).parent / "shaders").glob("*.metal")), ids=lambda p: p.stem)
def test_good_shaders(path):
    assert lint(Source.read(path)) == []


def test_explicit_conversions_and_plain_reads_of_bfloat():
    body = (
        "bfloat v = x[i]; y[i] = v; y[i] = bfloat(float(v) * 2.0f); const bool b = float(x[i]) > 1.0f; z[i] = float(b);"
    )
    assert findings(f"{HEAD}{KERNEL}{body}\n}}\n") == []
