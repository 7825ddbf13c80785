// The register tile of integer products: a few rows of activations times kTileColumns rows of a weight, whose codes lie unpacked
// in a panel. Both are words of 32 bits that hold neighbours along k. With dot products of bytes a word has four codes, and the
// 16-bit activations are split, q = 256 upper + lower: the lower bytes' products are added to 256 times the upper ones'. Without
// them a word has two codes, and two activations.
#pragma once

#include <cstddef>

#include "device/cpu/kernels/byte_tile.h"
#include "device/cpu/kernels/product.h"
#include "device/cpu/kernels/shorts.h"

namespace lily::cpu::LILY_ISA {

#if defined(__AVX512VNNI__)
constexpr int kParts = 2;  // of an activation
static inline Vi dot_words(Vi acc, Vi codes, Vi x) { return dot_quads(acc, codes, x); }
#elif defined(__ARM_FEATURE_DOTPROD)
constexpr int kParts = 2;  // byte_tile.h has the rest
#else
constexpr int kParts = 1;
static inline Vi dot_words(Vi acc, Vi codes, Vi x) { return dot_pairs(acc, (Vs)codes, (Vs)x); }
#endif
constexpr int kGroupWords = LILY_GROUP_SIZE / 2;        // of a row of activations
constexpr int kPanelWords = kGroupWords / kParts;       // of a row of the panel
constexpr int kPanelVectors = 2 * kPanelWords;          // of kLanes words: of a group of the panel
constexpr int kTurnWords = 8;                           // that are multiplied in a turn
constexpr int kGroupTurns = kGroupWords / kTurnWords;

// Rows of the tile: two accumulators each, two vectors of the panel and a word of x must fit the registers. Without dot products
// arm64 needs others for what it multiplies.
#if defined(__AVX512F__) || defined(__ARM_FEATURE_DOTPROD)
constexpr int kIntTileRows = 8;
#else
constexpr int kIntTileRows = 4;
#endif

#if !defined(__ARM_FEATURE_DOTPROD)
// kLanes integers of a row, to their places in its group at `q`.
static inline void store_words(Vi integers, std::uint32_t at, [[maybe_unused]] bool is_4_bit, std::byte* q) {
#if defined(__AVX512VNNI__)
  const __m128i order = is_4_bit ? _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
                                 : _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const Vi rounded = integers + 128;  // so that the lower byte is a signed number; g++ 12 warns about unmasked forms
  const __m128i upper = _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)(rounded >> 8));
  const __m128i lower = _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)integers);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q + at), _mm_shuffle_epi8(upper, order));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q + LILY_GROUP_SIZE + at), _mm_shuffle_epi8(lower, order));
#else
  store_shorts(reinterpret_cast<std::int16_t*>(q) + at, integers);
#endif
}

#if !defined(__AVX512VNNI__)
// Puts a group's pairs in order.
static inline void order_pairs(std::byte* q) {
  typedef std::int16_t Eight __attribute__((vector_size(16)));
  for (std::size_t i = 0; i < LILY_GROUP_SIZE * sizeof(std::int16_t); i += sizeof(Eight)) {
    const Eight v = load<Eight>(q + i);
    const Eight ordered = __builtin_shufflevector(v, v, 0, 4, 1, 5, 2, 6, 3, 7);
    std::memcpy(q + i, &ordered, sizeof ordered);
  }
}
#endif

// The sums of kRows rows and two vectors of columns.
template <int kRows>
struct IntSums {
  Vi at[kRows][2] = {};

  // A turn of words: of the panel's, and of the group's rows at x.
  void multiply(const Vi* panel, const std::byte* x, int turn) {
    constexpr std::size_t kRowBytes = kGroupWords * sizeof(std::int32_t);
    const std::byte* words = x + turn * kTurnWords * sizeof(std::int32_t);
#pragma GCC unroll 8
    for (int k = 0; k < kTurnWords; ++k) {
      const Vi w0 = panel[2 * k], w1 = panel[2 * k + 1];
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const Vi word = splati(load<std::int32_t>(words + i * kRowBytes + k * sizeof(std::int32_t)));
        at[i][0] = dot_words(at[i][0], w0, word);
        at[i][1] = dot_words(at[i][1], w1, word);
      }
    }
  }
  void shift() {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) at[i][0] <<= 8, at[i][1] <<= 8;
  }
  Vi row(int i, int half) const { return at[i][half]; }
};
#endif

// Quantises row `row` of `rows` for the tile, `width` numbers: words to q [group][row][64 integers], the sums of each group's
// integers to sums [group][row]. With bytes the words of the upper ones come first. 4-bit codes leave a word of eight with one
// shift and one mask, as the bytes (0, 2, 4, 6), (1, 3, 5, 7) or as the pairs (0, 4), (1, 5), (2, 6), (3, 7), so neighbours are
// these; 8-bit codes as the bytes that they are or as the same pairs. Returns the row's scale.
static inline float quantise_tile_row(const float* x, std::uint32_t width, bool is_4_bit, std::uint32_t row, std::uint32_t rows,
                                      std::byte* q, float* sums) {
  constexpr std::size_t kRowBytes = LILY_GROUP_SIZE * sizeof(std::int16_t);
  const RowScale scale(x, width);
  sums += row;
  for (std::uint32_t group = 0; group < width / LILY_GROUP_SIZE; ++group, x += LILY_GROUP_SIZE, q += rows * kRowBytes) {
    Vi total = {};
#if defined(__ARM_FEATURE_DOTPROD)
    std::int16_t shorts[LILY_GROUP_SIZE];
#endif
#pragma GCC unroll 4
    for (std::uint32_t i = 0; i < LILY_GROUP_SIZE; i += kLanes) {
      const Vi integers = quantised(x + i, scale.inverse);
#if defined(__ARM_FEATURE_DOTPROD)
      store_shorts(shorts + i, integers);
#else
      store_words(integers, i, is_4_bit, q + row * kRowBytes);
#endif
      total += integers;
    }
#if defined(__ARM_FEATURE_DOTPROD)
    store_group(shorts, is_4_bit, row, rows, q);
#elif !defined(__AVX512VNNI__)
    order_pairs(q + row * kRowBytes);
#endif
    sums[group * rows] = sum(to_float(total));
  }
  return scale.scale;
}

// c = x Wᵀ, or c += x Wᵀ, over `groups` groups of the panel, without the rows' scales: c [kRows][kTileColumns], scales and biases
// [group][kTileColumns]. The integer sums of one group are exact. `turn` is called kGroupTurns times a group, for work that hides
// behind the products.
template <int kRows, typename Turn>
static inline void int_tile(const std::byte* x, const float* sums, const Vi* panel, const float* scales, const float* biases,
                            std::uint32_t groups, bool accumulate, float* c, Turn& turn) {
  constexpr std::size_t kRowBytes = kGroupWords * sizeof(std::int32_t);
  for (std::uint32_t group = 0; group < groups; ++group) {
    IntSums<kRows> acc;
#pragma GCC unroll 1
    for (int i = 0; i < kGroupTurns; ++i) {
      if (kParts == 2 && i == kGroupTurns / 2) acc.shift();
      turn();
      acc.multiply(panel + i * 2 * kTurnWords % kPanelVectors, x, i);
      reload();
    }
    const bool is_first = group == 0 && !accumulate;
    for (int half = 0; half < 2; ++half) {
      const Vf scale = loadf(scales + half * kLanes), bias = loadf(biases + half * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        float* to = c + i * kTileColumns + half * kLanes;
        const Vf before = is_first ? Vf{} : loadf(to);
        storef(to, before + bias * sums[i] + scale * to_float(acc.row(i, half)));
      }
    }
    x += kRows * kRowBytes, sums += kRows, panel += kPanelVectors, scales += kTileColumns, biases += kTileColumns;
  }
}

// The tile of `rows` rows, 1 to kIntTileRows.
template <int kRows = kIntTileRows, typename Turn>
static inline void int_tile_of(std::uint32_t rows, const std::byte* x, const float* sums, const Vi* panel, const float* scales,
                               const float* biases, std::uint32_t groups, bool accumulate, float* c, Turn& turn) {
  if constexpr (kRows > 1) {
    if (rows < std::uint32_t(kRows))
      return int_tile_of<kRows - 1>(rows, x, sums, panel, scales, biases, groups, accumulate, c, turn);
  }
  int_tile<kRows>(x, sums, panel, scales, biases, groups, accumulate, c, turn);
}

}  // namespace lily::cpu::LILY_ISA
