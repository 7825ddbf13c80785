// What int_tile.h needs of arm64 with dotprod, and with i8mm: how rows of integers become bytes, and their products with a panel.
// A turn is 32 elements of the rows, their upper bytes or their lower ones.
#pragma once

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>

#include "device/cpu/kernel.h"
#include "device/cpu/kernels/shorts.h"
#include "device/cpu/kernels/simd.h"

namespace lily::cpu::LILY_ISA {

// `usmmla` multiplies 2 × 8 with 8 × 2 bytes: rows come in pairs, 8 bytes of one, 8 of the other. The last one of an odd number,
// and every row without i8mm, is alone.
static inline bool is_paired([[maybe_unused]] std::uint32_t row, [[maybe_unused]] std::uint32_t rows) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  return row % 2 == 1 || row + 1 < rows;
#else
  return false;
#endif
}

// Words (0, 1), (2, 3) become (0, 2), (1, 3).
[[maybe_unused]] static inline void mix_words(uint8x8_t (&v)[2]) {
  const uint32x2_t a = vreinterpret_u32_u8(v[0]), b = vreinterpret_u32_u8(v[1]);
  v[0] = vreinterpret_u8_u32(vzip1_u32(a, b)), v[1] = vreinterpret_u8_u32(vzip2_u32(a, b));
}

constexpr int kIntegerParts = 2;  // of an integer
constexpr int code_vectors(bool /*is_4_bit*/) { return 32; }  // vectors of a group of the panel
constexpr bool has_pairs(bool /*is_4_bit*/) { return false; }
constexpr float largest_integer(bool /*is_4_bit*/) { return kLargestShort; }
constexpr int kIntTileRows = 8;

// Writes a group of row `row` of `rows`, whose rows start at `to`. With 4-bit codes the order is that in which a shift and a mask
// leave them: even ones, then odd ones, of 8 neighbours or, with i8mm, of 16.
static inline void write_group(const Vi (&integers)[LILY_GROUP_SIZE / kLanes], bool is_4_bit, std::uint32_t row,
                               std::uint32_t rows, std::byte* to) {
  std::int16_t from[LILY_GROUP_SIZE];
  for (int i = 0; i < int(LILY_GROUP_SIZE) / kLanes; ++i) store_shorts(from + i * kLanes, integers[i]);
  const bool paired = is_paired(row, rows);
  const std::size_t stride = paired ? 16 : 8;
  auto* upper = reinterpret_cast<std::uint8_t*>(to);
  upper += paired ? row / 2 * 4 * LILY_GROUP_SIZE + row % 2 * 8 : row * 2 * LILY_GROUP_SIZE;
  std::uint8_t* lower = upper + stride * (LILY_GROUP_SIZE / 8);
  for (std::uint32_t i = 0; i < LILY_GROUP_SIZE; i += 16, upper += 2 * stride, lower += 2 * stride) {
    const auto* shorts = reinterpret_cast<const std::uint8_t*>(from + i);
    uint8x8_t low[2], high[2];
    if (is_4_bit) {
      const uint8x8x4_t v = vld4_u8(shorts);
      low[0] = v.val[0], high[0] = v.val[1], low[1] = v.val[2], high[1] = v.val[3];
#if !defined(__ARM_FEATURE_MATMUL_INT8)
      mix_words(low), mix_words(high);
#endif
    } else {
      const uint8x8x2_t a = vld2_u8(shorts), b = vld2_u8(shorts + 16);
      low[0] = a.val[0], high[0] = a.val[1], low[1] = b.val[0], high[1] = b.val[1];
    }
    for (int j = 0; j < 2; ++j) {
      // A lower byte of 128 or more is a negative number: the upper one makes up for it.
      vst1_u8(upper + j * stride, vsra_n_u8(high[j], low[j], 7));
      vst1_u8(lower + j * stride, low[j]);
    }
  }
}

// The sums of kRows rows and two vectors of kLanes columns.
#if defined(__ARM_FEATURE_MATMUL_INT8)
template <int kRows, bool kIs4Bit>
struct IntSums {
  int32x4_t at[(kRows + 1) / 2][4] = {};  // of a pair of rows and a pair of columns, columns first

  // A turn of the panel's vectors, each 2 columns × 8 elements, and of the group's rows at x.
  void multiply(const Vi* panel, const std::byte* x, int turn) {
    const auto* bytes = reinterpret_cast<const std::int8_t*>(x);
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step)
#pragma GCC unroll 4
      for (int p = 0; p < (kRows + 1) / 2; ++p) {
        const std::int8_t* pair = bytes + p * 4 * LILY_GROUP_SIZE;
        const int8x16_t rows = 2 * p + 1 < kRows ? vld1q_s8(pair + (turn * 4 + step) * 16) : twice(pair + (turn * 4 + step) * 8);
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) at[p][j] = vusmmlaq_s32(at[p][j], (uint8x16_t)panel[step * 4 + j], rows);
      }
  }
  void shift() {
    for (auto& pair : at)
      for (auto& sums : pair) sums = vshlq_n_s32(sums, 8);
  }
  Vi row(int i, int half) const {
    const int32x4_t a = at[i / 2][2 * half], b = at[i / 2][2 * half + 1];
    return (Vi)(i % 2 ? vuzp2q_s32(a, b) : vuzp1q_s32(a, b));
  }

 private:
  static int8x16_t twice(const std::int8_t* row) {
    const int8x8_t v = vld1_s8(row);
    return vcombine_s8(v, v);
  }
};
#else
template <int kRows, bool kIs4Bit>
struct IntSums {
  int32x4_t at[kRows][2] = {};

  // A turn of the panel's vectors, each kLanes columns × 4 elements, and of the group's rows at x.
  void multiply(const Vi* panel, const std::byte* x, int turn) {
    const auto* bytes = reinterpret_cast<const std::int8_t*>(x) + turn * 32;
#pragma GCC unroll 1
    for (int part = 0; part < 2; ++part, bytes += 16, panel += 8) {
      int8x16_t rows[kRows];
      for (int i = 0; i < kRows; ++i) rows[i] = vld1q_s8(bytes + i * 2 * LILY_GROUP_SIZE);
      add_word<0>(panel, rows), add_word<1>(panel, rows), add_word<2>(panel, rows), add_word<3>(panel, rows);
    }
  }
  void shift() {
    for (auto& row : at)
      for (auto& sums : row) sums = vshlq_n_s32(sums, 8);
  }
  Vi row(int i, int half) const { return (Vi)at[i][half]; }

 private:
  template <int kWord>
  void add_word(const Vi* panel, const int8x16_t (&rows)[kRows]) {
    const auto w0 = (int8x16_t)panel[2 * kWord], w1 = (int8x16_t)panel[2 * kWord + 1];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      at[i][0] = vdotq_laneq_s32(at[i][0], w0, rows[i], kWord);
      at[i][1] = vdotq_laneq_s32(at[i][1], w1, rows[i], kWord);
    }
  }
};
#endif

}  // namespace lily::cpu::LILY_ISA
#endif
