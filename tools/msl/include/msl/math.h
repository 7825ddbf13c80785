// Mathematics on scalars and, element by element, on vectors.
#pragma once

namespace msl {
template <class T, class F> MSL_INLINE T map(T a, F function) {
  T out;
  _Pragma("clang loop unroll(full)") for (int i = 0; i < vector_traits<T>::size; ++i) out[i] = function(a[i]);
  return out;
}
template <class T, class F> MSL_INLINE T map(T a, T b, F function) {
  T out;
  _Pragma("clang loop unroll(full)") for (int i = 0; i < vector_traits<T>::size; ++i) out[i] = function(a[i], b[i]);
  return out;
}
}  // namespace msl

// One scalar function and its vector forms. `body` sees x, or x and y.
#define MSL_UNARY_SCALAR(T, name, body) MSL_INLINE T name(T x) { return body; }
#define MSL_UNARY_VECTOR(T, name, N) \
  MSL_INLINE T##N name(T##N a) { return msl::map(a, [](T x) { return name(x); }); }
#define MSL_UNARY(T, name, body) \
  MSL_UNARY_SCALAR(T, name, body) MSL_UNARY_VECTOR(T, name, 2) MSL_UNARY_VECTOR(T, name, 3) MSL_UNARY_VECTOR(T, name, 4)
#define MSL_BINARY_SCALAR(T, name, body) MSL_INLINE T name(T x, T y) { return body; }
#define MSL_BINARY_VECTOR(T, name, N) \
  MSL_INLINE T##N name(T##N a, T##N b) { return msl::map(a, b, [](T x, T y) { return name(x, y); }); }
#define MSL_BINARY(T, name, body) \
  MSL_BINARY_SCALAR(T, name, body) MSL_BINARY_VECTOR(T, name, 2) MSL_BINARY_VECTOR(T, name, 3) MSL_BINARY_VECTOR(T, name, 4)

namespace metal {
// ---- float
#if MSL_CPU
#define MSL_TRANSCENDENTAL \
  MSL_UNARY(float, exp, __builtin_expf(x)) MSL_UNARY(float, exp2, __builtin_exp2f(x)) \
  MSL_UNARY(float, log, __builtin_logf(x)) MSL_UNARY(float, log2, __builtin_log2f(x)) \
  MSL_UNARY(float, sin, __builtin_sinf(x)) MSL_UNARY(float, cos, __builtin_cosf(x)) \
  MSL_UNARY(float, tanh, __builtin_tanhf(x)) MSL_UNARY(float, sqrt, __builtin_sqrtf(x)) \
  MSL_UNARY(float, rsqrt, 1.0f / __builtin_sqrtf(x)) MSL_BINARY(float, pow, __builtin_powf(x, y)) \
  MSL_BINARY(float, powr, __builtin_powf(x, y)) MSL_BINARY(float, divide, x / y)
MSL_BINARY(float, fmin, __builtin_fminf(x, y)) MSL_BINARY(float, fmax, __builtin_fmaxf(x, y))
#else
#define MSL_TRANSCENDENTAL \
  MSL_UNARY(float, exp2, __nvvm_ex2_approx_f(x)) MSL_UNARY(float, log2, __nvvm_lg2_approx_f(x)) \
  MSL_UNARY(float, exp, __nvvm_ex2_approx_f(x * M_LOG2E_F)) MSL_UNARY(float, log, __nvvm_lg2_approx_f(x) * M_LN2_F) \
  MSL_UNARY(float, sin, __nvvm_sin_approx_f(x)) MSL_UNARY(float, cos, __nvvm_cos_approx_f(x)) \
  MSL_UNARY(float, sqrt, __nvvm_sqrt_rn_f(x)) MSL_UNARY(float, rsqrt, __nvvm_rsqrt_approx_f(x)) \
  MSL_UNARY(float, tanh, 1.0f - 2.0f / (1.0f + __nvvm_ex2_approx_f(2.0f * M_LOG2E_F * x))) \
  MSL_BINARY(float, pow, __nvvm_ex2_approx_f(y * __nvvm_lg2_approx_f(x))) \
  MSL_BINARY(float, powr, __nvvm_ex2_approx_f(y * __nvvm_lg2_approx_f(x))) MSL_BINARY(float, divide, x / y)
MSL_BINARY(float, fmin, __nvvm_fmin_f(x, y)) MSL_BINARY(float, fmax, __nvvm_fmax_f(x, y))
#endif
MSL_TRANSCENDENTAL
namespace precise { MSL_TRANSCENDENTAL }
namespace fast { MSL_TRANSCENDENTAL }
#undef MSL_TRANSCENDENTAL
MSL_BINARY(float, min, fmin(x, y)) MSL_BINARY(float, max, fmax(x, y))
MSL_UNARY(float, fabs, __builtin_fabsf(x)) MSL_UNARY(float, abs, __builtin_fabsf(x))
MSL_UNARY(float, floor, __builtin_floorf(x)) MSL_UNARY(float, ceil, __builtin_ceilf(x))
MSL_UNARY(float, rint, __builtin_rintf(x)) MSL_UNARY(float, trunc, __builtin_truncf(x))
MSL_UNARY(float, round, __builtin_roundf(x)) MSL_UNARY(float, fract, x - __builtin_floorf(x))
MSL_UNARY(float, sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : 0.0f)
MSL_BINARY(float, copysign, __builtin_copysignf(x, y))
MSL_INLINE bool isnan(float x) { return x != x; }
MSL_INLINE bool isinf(float x) { return __builtin_fabsf(x) == INFINITY; }
MSL_INLINE bool isfinite(float x) { return __builtin_fabsf(x) < INFINITY; }
MSL_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
template <int N> MSL_INLINE vec<float, N> fma(vec<float, N> a, vec<float, N> b, vec<float, N> c) {
  return __builtin_elementwise_fma(a, b, c);
}
MSL_INLINE float mix(float a, float b, float t) { return a + (b - a) * t; }
MSL_INLINE float saturate(float x) { return fmin(fmax(x, 0.0f), 1.0f); }
MSL_INLINE float dot(float2 a, float2 b) { return a.x * b.x + a.y * b.y; }
MSL_INLINE float dot(float3 a, float3 b) { return a.x * b.x + a.y * b.y + a.z * b.z; }
MSL_INLINE float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
MSL_INLINE float length_squared(float4 a) { return dot(a, a); }

// ---- integers
#define MSL_INTEGER(T) MSL_BINARY(T, min, x < y ? x : y) MSL_BINARY(T, max, x < y ? y : x)
MSL_INTEGER(int) MSL_INTEGER(uint) MSL_INTEGER(short) MSL_INTEGER(ushort) MSL_INTEGER(long) MSL_INTEGER(ulong)
#undef MSL_INTEGER
MSL_UNARY(int, abs, x < 0 ? -x : x)
MSL_UNARY(uint, popcount, (uint)__builtin_popcount(x))
MSL_UNARY(uint, clz, x ? (uint)__builtin_clz(x) : 32u)
MSL_UNARY(uint, ctz, x ? (uint)__builtin_ctz(x) : 32u)
MSL_UNARY(uint, reverse_bits, __builtin_bitreverse32(x))
MSL_BINARY(uint, mulhi, (uint)(((ulong)x * y) >> 32))
MSL_INLINE uint extract_bits(uint x, uint offset, uint bits) {
  return bits == 0 ? 0u : (x >> offset) & (0xffffffffu >> (32 - bits));
}
MSL_INLINE uint insert_bits(uint base, uint x, uint offset, uint bits) {
  const uint mask = bits == 0 ? 0u : (0xffffffffu >> (32 - bits)) << offset;
  return (base & ~mask) | ((x << offset) & mask);
}

// ---- any type
template <class T> MSL_INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }
template <class T> MSL_INLINE T select(T a, T b, bool condition) { return condition ? b : a; }
template <class T, int N> MSL_INLINE vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> condition) {
  vec<T, N> out;
  for (int i = 0; i < N; ++i) out[i] = condition[i] ? b[i] : a[i];
  return out;
}
}  // namespace metal
