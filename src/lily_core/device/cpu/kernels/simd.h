// One vector type per instruction set, as wide as its registers, and the few functions on it that kernels need.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace lily::cpu::LILY_ISA {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Vf __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t Vi __attribute__((vector_size(kLanes * 4)));
typedef std::uint8_t Vb __attribute__((vector_size(kLanes)));
typedef std::uint16_t Vh __attribute__((vector_size(kLanes * 2)));

typedef std::int16_t Vs __attribute__((vector_size(kLanes * 4)));  // twice as many

template <typename V, typename T>
static inline V load(const T* from) {
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
static inline Vf loadf(const float* from) { return load<Vf>(from); }
static inline void storef(float* to, Vf v) { std::memcpy(to, &v, sizeof v); }

// Copies `count` floats, a multiple of kLanes, past the caches where it can: for rows that are far apart and read much later. A
// range of tiles that has streamed ends with finish_streams().
static inline void stream_row(float* to, const float* from, std::uint32_t count) {
#if defined(__x86_64__)
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(Vf) == 0) {
    for (std::uint32_t i = 0; i < count; i += kLanes)
#if defined(__AVX512F__)
      _mm512_stream_ps(to + i, (__m512)loadf(from + i));
#elif defined(__AVX2__)
      _mm256_stream_ps(to + i, (__m256)loadf(from + i));
#else
      _mm_stream_ps(to + i, (__m128)loadf(from + i));
#endif
    return;
  }
#endif
  std::memcpy(to, from, count * sizeof(float));
}
static inline void finish_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

static inline Vf splat(float x) { return x - Vf{}; }
static inline Vi splati(std::int32_t x) { return x - Vi{}; }

// A number in half precision, as it is stored.
struct Half {
  std::uint16_t bits;
};

// kLanes halves as floats.
static inline Vf loadf(const Half* from) {
#if defined(__AVX512F__)
  return (Vf)_mm512_maskz_cvtph_ps(0xffff, load<__m256i>(from));  // g++ 12 warns about the unmasked form
#elif defined(__F16C__)
  return (Vf)_mm256_cvtph_ps(load<__m128i>(from));
#elif defined(__aarch64__)
  return (Vf)vcvt_f32_f16(load<float16x4_t>(from));
#else
  // Exponent and mantissa move up by 13 bits; 2^112 corrects the bias, also of subnormals. What overflows was infinite or NaN.
  const Vi bits = __builtin_convertvector(load<Vh>(from), Vi);
  const Vi magnitude = (bits & 0x7fff) << 13, sign = (bits & 0x8000) << 16;
  const Vf scaled = (Vf)magnitude * 0x1p112f;
  const Vi finite = (Vi)scaled, special = magnitude | 0x7f800000;
  return (Vf)((magnitude >= (0x1f << 23) ? special : finite) | sign);
#endif
}

// Rounds to the nearest half, ties to even.
static inline void storef(Half* to, Vf v) {
#if defined(__AVX512F__)
  const __m256i halves = _mm512_maskz_cvtps_ph(0xffff, (__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
  const __m128i halves = _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
  const float16x4_t halves = vcvt_f16_f32((float32x4_t)v);
#else
  const Vi bits = (Vi)v, sign = bits & std::int32_t(0x80000000), magnitude = bits ^ sign;
  const Vi odd = (magnitude >> 13) & 1;
  const Vi normal = (magnitude - (112 << 23) + 0xfff + odd) >> 13;
  // Below 2^-14 adding 1/2 leaves the rounded bits at the end of the mantissa.
  const Vi subnormal = (Vi)((Vf)magnitude + 0.5f) - 0x3f000000;
  const Vi special = magnitude > 0x7f800000 ? splati(0x7e00) : splati(0x7c00);
  const Vi wide = (magnitude >= (143 << 23) ? special : magnitude < (113 << 23) ? subnormal : normal) | (sign >> 16);
  const Vh halves = __builtin_convertvector(wide & 0xffff, Vh);
#endif
  std::memcpy(to, &halves, sizeof halves);
}


static inline Vf to_float(Vi v) { return __builtin_convertvector(v, Vf); }

// kLanes bytes as integers.
static inline Vi widen(const std::uint8_t* from) {
#if defined(__AVX512F__)
  return (Vi)_mm512_maskz_cvtepu8_epi32(0xffff, load<__m128i>(from));  // g++ 12 warns about the unmasked form
#elif defined(__AVX2__)
  return (Vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#elif defined(__SSE2__)
  const __m128i bytes = _mm_cvtsi32_si128(load<std::int32_t>(from)), zero = _mm_setzero_si128();
  return (Vi)_mm_unpacklo_epi16(_mm_unpacklo_epi8(bytes, zero), zero);
#else
  return __builtin_convertvector(load<Vb>(from), Vi);
#endif
}

// kLanes bfloat16 numbers.
static inline Vf load_bf16(const void* from) {
  const Vi bits = __builtin_convertvector(load<Vh>(from), Vi) << 16;
  Vf v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}

// 0, 1, 2, ..
#if defined(__AVX512F__)
constexpr Vi kLaneIndex = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX2__)
constexpr Vi kLaneIndex = {0, 1, 2, 3, 4, 5, 6, 7};
#else
constexpr Vi kLaneIndex = {0, 1, 2, 3};
#endif

// Vectors are sequences of 16-byte quarters. Interleaves the lower or upper halves of each quarter of a and b, in units of the
// element type: (a0, b0, a1, b1, ..).
#if defined(__AVX512F__)
#define LILY_ZIP(bits, half) _mm512_unpack##half##_epi##bits
#define LILY_ZIP_VECTOR __m512i
#elif defined(__AVX2__)
#define LILY_ZIP(bits, half) _mm256_unpack##half##_epi##bits
#define LILY_ZIP_VECTOR __m256i
#elif defined(__SSE2__)
#define LILY_ZIP(bits, half) _mm_unpack##half##_epi##bits
#define LILY_ZIP_VECTOR __m128i
#endif
#if defined(LILY_ZIP)
static inline Vi zip_low16(Vi a, Vi b) { return (Vi)LILY_ZIP(16, lo)((LILY_ZIP_VECTOR)a, (LILY_ZIP_VECTOR)b); }
static inline Vi zip_high16(Vi a, Vi b) { return (Vi)LILY_ZIP(16, hi)((LILY_ZIP_VECTOR)a, (LILY_ZIP_VECTOR)b); }
static inline Vi zip_low32(Vi a, Vi b) { return (Vi)LILY_ZIP(32, lo)((LILY_ZIP_VECTOR)a, (LILY_ZIP_VECTOR)b); }
static inline Vi zip_high32(Vi a, Vi b) { return (Vi)LILY_ZIP(32, hi)((LILY_ZIP_VECTOR)a, (LILY_ZIP_VECTOR)b); }
static inline Vi zip_low64(Vi a, Vi b) { return (Vi)LILY_ZIP(64, lo)((LILY_ZIP_VECTOR)a, (LILY_ZIP_VECTOR)b); }
static inline Vi zip_high64(Vi a, Vi b) { return (Vi)LILY_ZIP(64, hi)((LILY_ZIP_VECTOR)a, (LILY_ZIP_VECTOR)b); }
#undef LILY_ZIP
#undef LILY_ZIP_VECTOR
#else
typedef std::int64_t Vl __attribute__((vector_size(kLanes * 4)));
static inline Vi zip_low16(Vi a, Vi b) { return (Vi)__builtin_shufflevector((Vs)a, (Vs)b, 0, 8, 1, 9, 2, 10, 3, 11); }
static inline Vi zip_high16(Vi a, Vi b) { return (Vi)__builtin_shufflevector((Vs)a, (Vs)b, 4, 12, 5, 13, 6, 14, 7, 15); }
static inline Vi zip_low32(Vi a, Vi b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
static inline Vi zip_high32(Vi a, Vi b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
static inline Vi zip_low64(Vi a, Vi b) { return (Vi)__builtin_shufflevector((Vl)a, (Vl)b, 0, 2); }
static inline Vi zip_high64(Vi a, Vi b) { return (Vi)__builtin_shufflevector((Vl)a, (Vl)b, 1, 3); }
#endif

// acc + a · b: each lane of the result adds the products of two neighbours.
static inline Vi dot_pairs(Vi acc, Vs a, Vs b) {
#if defined(__AVX512VNNI__)
  return (Vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return acc + (Vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return acc + (Vi)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
  const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
  return acc + (Vi)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
#else
  const Vi left = (Vi)a, right = (Vi)b;  // little-endian: the first neighbour is the lower half
  return acc + (left << 16 >> 16) * (right << 16 >> 16) + (left >> 16) * (right >> 16);
#endif
}

#if defined(__AVX512VNNI__)
// acc + a · b: each lane of the result adds the products of four neighbours, unsigned bytes of a and signed bytes of b.
static inline Vi dot_quads(Vi acc, Vi a, Vi b) { return (Vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)a, (__m512i)b); }
#endif

// What is in memory is loaded again behind this. g++ would keep it in more registers than there are, that is, on the stack.
static inline void reload() { asm volatile("" ::: "memory"); }

// Rounds to the nearest integers, ties to even; |v| < 2^22.
static inline Vi round_to_int(Vf v) {
  const Vf rounder = splat(12582912.0f);  // 1.5 · 2^23
  return (Vi)(v + rounder) - 0x4b400000;
}

// kLanes integers that fit 16 bits.
static inline void store_shorts(std::int16_t* to, Vi v) {
#if defined(__AVX512F__)
  const __m256i shorts = _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)v);  // g++ 12 warns about the unmasked form
#else
  typedef std::int16_t Shorts __attribute__((vector_size(kLanes * 2)));
  const Shorts shorts = __builtin_convertvector(v, Shorts);
#endif
  std::memcpy(to, &shorts, sizeof shorts);
}

static inline float largest(Vf v) {
  float best = v[0];
  for (int i = 1; i < kLanes; ++i) best = v[i] > best ? v[i] : best;
  return best;
}

static inline float sum(Vf v) {
#if defined(__AVX512F__)
  const auto half =
      __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
#else
  const auto half = v;
#endif
#if defined(__AVX2__)
  const auto quarter = __builtin_shufflevector(half, half, 0, 1, 2, 3) + __builtin_shufflevector(half, half, 4, 5, 6, 7);
#else
  const auto quarter = half;
#endif
  const auto pair = quarter + __builtin_shufflevector(quarter, quarter, 2, 3, 0, 1);
  return pair[0] + pair[1];
}

// sums = sum(a), sum(b), sum(c), sum(d)
static inline void four_sums(Vf a, Vf b, Vf c, Vf d, float* sums) {
  auto pairs = [](Vf x, Vf y) { return (Vf)zip_low32((Vi)x, (Vi)y) + (Vf)zip_high32((Vi)x, (Vi)y); };
  const Vf ab = pairs(a, b), cd = pairs(c, d);
  const Vf quarters = (Vf)zip_low64((Vi)ab, (Vi)cd) + (Vf)zip_high64((Vi)ab, (Vi)cd);
  typedef float Four __attribute__((vector_size(16)));
  Four total = __builtin_shufflevector(quarters, quarters, 0, 1, 2, 3);
#if defined(__AVX2__)
  total += __builtin_shufflevector(quarters, quarters, 4, 5, 6, 7);
#endif
#if defined(__AVX512F__)
  total += __builtin_shufflevector(quarters, quarters, 8, 9, 10, 11);
  total += __builtin_shufflevector(quarters, quarters, 12, 13, 14, 15);
#endif
  std::memcpy(sums, &total, sizeof total);
}

static inline float bf16_to_float(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t(bits) << 16;
  float x;
  std::memcpy(&x, &wide, sizeof x);
  return x;
}

// Does any lane of a comparison hold?
static inline bool any(Vi mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_movemask_epi8((__m256i)mask) != 0;
#elif defined(__SSE2__)
  return _mm_movemask_epi8((__m128i)mask) != 0;
#else
  std::int32_t seen = 0;
  for (int i = 0; i < kLanes; ++i) seen |= mask[i];
  return seen != 0;
#endif
}

static inline Vf max(Vf a, Vf b) { return a > b ? a : b; }
static inline Vi max(Vi a, Vi b) { return a > b ? a : b; }
static inline Vf min(Vf a, Vf b) { return a < b ? a : b; }

// e^x to 1 ulp or so: x = n ln 2 + r, a degree-6 polynomial in r, times 2^n. Below -87.3 the result is 0, above 88.7228 infinity.
static inline Vf exp(Vf x) {
  // In this order of operands a NaN stays one.
  const Vf above = splat(-88.0f) > x ? splat(-88.0f) : x;
  const Vf clamped = splat(89.0f) < above ? splat(89.0f) : above;
  const Vf rounder = splat(12582912.0f);  // 1.5 · 2^23: adding it rounds to the nearest integer
  const Vf n = (clamped * 1.44269504f + rounder) - rounder;
  const Vf r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
  Vf p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
#if defined(__AVX512F__)
  const Vf y = (Vf)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)n);  // g++ 12 warns about the unmasked form
#else
  // Two factors, since 2^n itself overflows at n = 128.
  const Vi half = __builtin_convertvector(n, Vi) >> 1, rest = __builtin_convertvector(n, Vi) - half;
  const Vf y = p * (Vf)((half + 127) << 23) * (Vf)((rest + 127) << 23);
#endif
  return x < splat(-87.3f) ? Vf{} : y;
}

// 16 bytes from each of kLanes / 4 places, `stride` pointers apart.
static inline Vi load_quarters(const std::uint8_t* const* places, int stride, std::size_t offset) {
#if defined(__AVX512F__)
  __m512i v = _mm512_castsi128_si512(load<__m128i>(places[0] + offset));
  v = _mm512_inserti32x4(v, load<__m128i>(places[stride] + offset), 1);
  v = _mm512_inserti32x4(v, load<__m128i>(places[2 * stride] + offset), 2);
  return (Vi)_mm512_inserti32x4(v, load<__m128i>(places[3 * stride] + offset), 3);
#elif defined(__AVX2__)
  return (Vi)_mm256_inserti128_si256(_mm256_castsi128_si256(load<__m128i>(places[0] + offset)),
                                     load<__m128i>(places[stride] + offset), 1);
#else
  (void)stride;
  return load<Vi>(places[0] + offset);
#endif
}

// Half a vector of words; the other lanes are 0.
static inline Vi load_half(const std::uint8_t* from) {
  Vi v = {};
  std::memcpy(&v, from, sizeof v / 2);
  return v;
}

// v[i] in the lower half of the lanes, v[i + 1] in the upper one.
static inline Vf two_lanes(Vf v, std::uint32_t i) {
  const Vi lanes = (kLaneIndex >= kLanes / 2 ? splati(1) : Vi{}) + std::int32_t(i);
#if defined(__AVX512F__)
  return (Vf)_mm512_maskz_permutexvar_ps(0xffff, (__m512i)lanes, (__m512)v);
#else
  Vf result;
  for (int lane = 0; lane < kLanes; ++lane) result[lane] = v[lanes[lane]];
  return result;
#endif
}

// The first `count` lanes from memory, the rest `fill`.
static inline Vf load_part(const float* from, std::uint32_t count, float fill = 0.0f) {
#if defined(__AVX512F__)
  return (Vf)_mm512_mask_loadu_ps((__m512)splat(fill), __mmask16((1u << count) - 1), from);
#else
  Vf v = splat(fill);
  for (std::uint32_t i = 0; i < count; ++i) v[i] = from[i];
  return v;
#endif
}
static inline void store_part(float* to, Vf v, std::uint32_t count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), (__m512)v);
#else
  for (std::uint32_t i = 0; i < count; ++i) to[i] = v[i];
#endif
}

}  // namespace lily::cpu::LILY_ISA
