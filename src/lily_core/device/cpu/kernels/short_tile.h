// What int_tile.h needs of instruction sets that multiply pairs of 16-bit integers: how rows of them are stored, and their
// products with a panel. A word holds two neighbours.
#pragma once

#if !defined(__AVX512VNNI__) && !defined(__ARM_FEATURE_DOTPROD)
#include "device/cpu/kernel.h"
#include "device/cpu/kernels/shorts.h"
#include "device/cpu/kernels/simd.h"

namespace lily::cpu::LILY_ISA {

constexpr int kIntegerParts = 1;  // of an integer
constexpr int code_vectors(bool /*is_4_bit*/) { return 64; }  // vectors of a group of the panel
constexpr bool has_pairs(bool /*is_4_bit*/) { return false; }
constexpr float largest_integer(bool /*is_4_bit*/) { return kLargestShort; }

constexpr int kIntTileRows = 4;  // two accumulators each, two vectors of the panel and a word of x fit 16 registers

// Writes a group of row `row`, whose rows start at `to`. Pairs are put in the order in which shifts and masks leave codes in a
// word of eight: (0, 4), (1, 5), (2, 6), (3, 7).
static inline void write_group(const Vi (&integers)[LILY_GROUP_SIZE / kLanes], bool /*is_4_bit*/, std::uint32_t row,
                               std::uint32_t /*rows*/, std::byte* to) {
  std::int16_t shorts[LILY_GROUP_SIZE];
  for (int i = 0; i < int(LILY_GROUP_SIZE) / kLanes; ++i) store_shorts(shorts + i * kLanes, integers[i]);
  typedef std::int16_t Eight __attribute__((vector_size(16)));
  for (std::uint32_t i = 0; i < LILY_GROUP_SIZE; i += 8) {
    const Eight v = load<Eight>(shorts + i);
    const Eight ordered = __builtin_shufflevector(v, v, 0, 4, 1, 5, 2, 6, 3, 7);
    std::memcpy(to + row * kRowBytes + i * sizeof(std::int16_t), &ordered, sizeof ordered);
  }
}

// The sums of kRows rows and two vectors of columns.
template <int kRows, bool kIs4Bit>
struct IntSums {
  Vi at[kRows][2] = {};

  // A turn of 8 words: of the panel's, and of the group's rows at x.
  void multiply(const Vi* panel, const std::byte* x, int turn) {
    x += turn * 8 * sizeof(std::int32_t);
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k, x += sizeof(std::int32_t)) {
      const Vi w0 = panel[2 * k], w1 = panel[2 * k + 1];
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const auto word = (Vs)splati(load<std::int32_t>(x + i * kRowBytes));
        at[i][0] = dot_pairs(at[i][0], (Vs)w0, word);
        at[i][1] = dot_pairs(at[i][1], (Vs)w1, word);
      }
    }
  }
  Vi row(int i, int half) const { return at[i][half]; }
};

}  // namespace lily::cpu::LILY_ISA
#endif
