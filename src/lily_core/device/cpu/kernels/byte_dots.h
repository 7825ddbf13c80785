// Products of 16-bit integers with codes out of products of bytes, of which arm64 with dotprod does 16 in one instruction and
// AVX-512 with VNNI 64: q = 256 · upper + lower, both signed. The products with the upper bytes come first, then one shift by 8,
// then those with the lower bytes: one accumulator, and its sum is exact.
#pragma once

#include "device/cpu/kernels/quant.h"

namespace lily::cpu::LILY_ISA {

// What codes are made smaller by where both sides have to be signed bytes (dotprod without i8mm):
// w = scale · (code - offset) + (bias + offset · scale).
template <Format kFormat>
constexpr int kCodeOffset =
#if defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
    is_4_bit(kFormat) ? 0 : 128;
#else
    0;
#endif

#if defined(__ARM_FEATURE_DOTPROD)
// Each lane adds the products of four neighbours.
static inline int32x4_t dot_bytes(int32x4_t acc, uint8x16_t codes, int8x16_t x) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return vusdotq_s32(acc, codes, x);
#else
  return vdotq_s32(acc, vreinterpretq_s8_u8(codes), x);
#endif
}

// A group's codes as 4 vectors of bytes: in their own order; of 4 bits, of 32 codes the even ones before the odd ones.
template <Format kFormat>
static inline void load_codes(const std::uint8_t* from, uint8x16_t (&codes)[4]) {
  for (int i = 0; i < 4; ++i) {
    if constexpr (!is_4_bit(kFormat)) {
      codes[i] = veorq_u8(vld1q_u8(from + 16 * i), vdupq_n_u8(kCodeOffset<kFormat>));
    } else if (i % 2 == 0) {
      const uint8x16_t pairs = vld1q_u8(from + 8 * i);
      codes[i] = vandq_u8(pairs, vdupq_n_u8(15));
      codes[i + 1] = vshrq_n_u8(pairs, 4);
    }
  }
}

// The 64 integers of each group as 64 upper bytes and 64 lower ones, in the order of load_codes.
static inline void split_bytes(const std::int16_t* from, std::uint32_t columns, Format format, std::int16_t* to) {
  auto* bytes = reinterpret_cast<std::uint8_t*>(to);
  for (std::uint32_t i = 0; i < columns; i += 32) {
    const auto* shorts = reinterpret_cast<const std::uint8_t*>(from + i);
    std::uint8_t* upper = bytes + i / LILY_GROUP_SIZE * 2 * LILY_GROUP_SIZE + i % LILY_GROUP_SIZE;
    // A lower byte of 128 or more is a negative number: the upper one makes up for it.
    auto store = [&](int at, uint8x16_t low, uint8x16_t high) {
      vst1q_u8(upper + at, vsraq_n_u8(high, low, 7));
      vst1q_u8(upper + LILY_GROUP_SIZE + at, low);
    };
    if (is_4_bit(format)) {
      const uint8x16x4_t v = vld4q_u8(shorts);
      store(0, v.val[0], v.val[1]), store(16, v.val[2], v.val[3]);
    } else {
      const uint8x16x2_t a = vld2q_u8(shorts), b = vld2q_u8(shorts + 32);
      store(0, a.val[0], a.val[1]), store(16, b.val[0], b.val[1]);
    }
  }
}

// dot[p] = Σ (code - offset) · q over one group, spread over the lanes, for the rows that split_bytes made.
template <Format kFormat, int kProducts>
static inline void dot_group(const std::uint8_t* group_codes, const std::int16_t* const (&rows)[kProducts], std::size_t group,
                             Vi (&dot)[kProducts]) {
  uint8x16_t codes[4];
  load_codes<kFormat>(group_codes, codes);
  for (int p = 0; p < kProducts; ++p) {
    const auto* upper = reinterpret_cast<const std::int8_t*>(rows[p] + group * LILY_GROUP_SIZE);
    int32x4_t acc = vdupq_n_s32(0);
    for (int i = 0; i < 4; ++i) acc = dot_bytes(acc, codes[i], vld1q_s8(upper + 16 * i));
    acc = vshlq_n_s32(acc, 8);
    for (int i = 0; i < 4; ++i) acc = dot_bytes(acc, codes[i], vld1q_s8(upper + LILY_GROUP_SIZE + 16 * i));
    dot[p] = (Vi)acc;
  }
}
#endif

#if defined(__AVX512VNNI__)
// 64 numbers that fit a byte, in their order.
static inline __m512i to_bytes(const Vi (&v)[4]) {
  const __m512i low = _mm512_packs_epi32((__m512i)v[0], (__m512i)v[1]), high = _mm512_packs_epi32((__m512i)v[2], (__m512i)v[3]);
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);  // packing works on quarters
  return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(low, high));
}

// The 64 integers of a group, q = 2^bits · upper + lower, as 64 upper bytes and 64 lower ones.
static inline void split_group(const Vi (&integers)[4], int bits, __m512i (&parts)[2]) {
  Vi upper[4], lower[4];
  for (int i = 0; i < 4; ++i) {
    upper[i] = (integers[i] + (1 << (bits - 1))) >> bits;  // so that the lower byte is a signed number
    lower[i] = integers[i] - (upper[i] << bits);
  }
  parts[0] = to_bytes(upper), parts[1] = to_bytes(lower);
}

// 64 or 128 integers become upper bytes, then lower ones. With 4-bit codes either are the even elements of words of eight, then
// the odd ones.
static inline void split_bytes(const std::int16_t* from, std::uint32_t columns, Format format, std::int16_t* to) {
  const __m512i half = _mm512_set1_epi16(128), byte = _mm512_set1_epi16(255);
  auto upper = [&](std::uint32_t i) { return _mm512_srai_epi16(_mm512_add_epi16(load<__m512i>(from + i), half), 8); };
  auto lower = [&](std::uint32_t i) { return _mm512_and_si512(load<__m512i>(from + i), byte); };
  auto store = [&](std::uint32_t at, __m512i bytes) { std::memcpy(to + at, &bytes, sizeof bytes); };
  if (!is_4_bit(format)) {
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);  // packing works on quarters
    for (std::uint32_t i = 0; i < columns; i += 64) {
      store(i, _mm512_permutexvar_epi64(order, _mm512_packs_epi16(upper(i), upper(i + 32))));
      store(i + 32, _mm512_permutexvar_epi64(order, _mm512_packus_epi16(lower(i), lower(i + 32))));
    }
    return;
  }
  const __m512i parity = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
  const __m512i even = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 16, 20, 24, 28, 17, 21, 25, 29);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(2));
  for (std::uint32_t i = 0; i < columns; i += 128) {
    auto store_halves = [&](std::uint32_t at, __m512i low, __m512i high) {
      low = _mm512_shuffle_epi8(low, parity), high = _mm512_shuffle_epi8(high, parity);
      store(at, _mm512_permutex2var_epi32(low, even, high));
      store(at + 32, _mm512_permutex2var_epi32(low, odd, high));
    };
    store_halves(i, _mm512_packs_epi16(upper(i), upper(i + 32)), _mm512_packs_epi16(upper(i + 64), upper(i + 96)));
    store_halves(i + 64, _mm512_packus_epi16(lower(i), lower(i + 32)), _mm512_packus_epi16(lower(i + 64), lower(i + 96)));
  }
}

// Each lane adds the products of a word's codes.
template <Format kFormat>
static inline Vi dot_words(Vi words, const std::int16_t* bytes) {
  auto x = [&](int i) { return load<Vi>(bytes + i * 32); };
  if constexpr (!is_4_bit(kFormat)) return dot_quads(dot_quads(Vi{}, words, x(0)) << 8, words, x(1));
  const Vi even = words & 0x0f0f0f0f, odd = (words >> 4) & 0x0f0f0f0f;
  const Vi upper = dot_quads(dot_quads(Vi{}, even, x(0)), odd, x(1));
  return dot_quads(dot_quads(upper << 8, even, x(2)), odd, x(3));
}
#endif

}  // namespace lily::cpu::LILY_ISA
