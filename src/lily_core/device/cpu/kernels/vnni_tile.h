// What int_tile.h needs of x86 with AVX-512 VNNI: how rows of integers become bytes, and their products with a panel. A word
// holds four neighbours.
//
// Codes of 4 bits leave room in a byte. Where two of four vector units multiply while all can add (LILY_PAIRS), half of the words
// are multiplied two at a time, by Winograd's inner product (1968):
//   x0 · y0 + x1 · y1 = (x0 + y1) · (x1 + y0) - x0 · x1 - y0 · y1
// One product and two additions take the place of two products. What is taken away belongs to a row of x or to a row of y alone:
// it is subtracted once, at the end of a group. All sums are exact.
#pragma once

#if defined(__AVX512VNNI__) && !defined(LILY_AMX)
#include "device/cpu/kernel.h"
#include "device/cpu/kernels/byte_dots.h"
#include "device/cpu/kernels/shorts.h"
#include "device/cpu/kernels/simd.h"

namespace lily::cpu::LILY_ISA {

constexpr int kIntegerParts = 2;  // of an integer, q = 2^s · upper + lower, both signed bytes
#if defined(LILY_PAIRS)
constexpr bool has_pairs(bool is_4_bit) { return is_4_bit; }
#else
constexpr bool has_pairs(bool /*is_4_bit*/) { return false; }
#endif
constexpr int lower_bits(bool is_4_bit) { return has_pairs(is_4_bit) ? 7 : 8; }
// Vectors of a group of the panel: words of codes as they lie in memory, of eight codes if these have 4 bits.
constexpr int code_vectors(bool is_4_bit) { return is_4_bit ? 16 : 32; }

// With pairs the upper byte ends at ±112: words x0 lie as x0 + 112, so x0 + y1 is an unsigned byte, and x1 + y0 a signed one.
constexpr int kLargestUpper = 112;
constexpr int kRaisedWord = kLargestUpper * 0x01010101;
// With y0, y1 up to 15 neither sum leaves its byte, of upper parts or of lower ones, -64 to 63; `y | kRaisedWord` is their sum.
static_assert(2 * kLargestUpper + 15 <= 255 && kLargestUpper >= 64 && kLargestUpper + 15 <= 127 && kLargestUpper % 16 == 0);
constexpr float largest_integer(bool is_4_bit) { return has_pairs(is_4_bit) ? 128 * kLargestUpper + 63 : kLargestShort; }

constexpr int kIntTileRows = 8;  // two accumulators each, eight vectors of the panel and two sums of a pair fit the registers

// Writes a group of row `row` of `rows`, whose rows start at `to`: 64 upper bytes, 64 lower ones, and behind the sums of all rows
// what its pairs are corrected by, Σ (x0 + 112) · x1. With 4-bit codes a word of eight falls into even and odd ones; of 16
// neighbours words 0 and 1, the pair, have the even ones.
static inline void write_group(const Vi (&integers)[4], bool is_4_bit, std::uint32_t row, std::uint32_t rows, std::byte* to) {
  const int bits = lower_bits(is_4_bit);
  __m512i parts[kIntegerParts];
  split_group(integers, bits, parts);
  if (is_4_bit) {
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    for (__m512i& part : parts) part = _mm512_shuffle_epi8(part, order);
  }
  if (has_pairs(is_4_bit)) {
    const __m512i raise = _mm512_broadcast_i32x4(_mm_setr_epi32(kRaisedWord, 0, 0, 0));
    Vi products[kIntegerParts];
    for (int i = 0; i < kIntegerParts; ++i) {
      parts[i] = _mm512_add_epi8(parts[i], raise);
      products[i] = dot_quads(Vi{}, (Vi)parts[i], (Vi)_mm512_srli_epi64(parts[i], 32));  // word 0: (x0 + 112) x1
    }
    const Vi sum = (products[0] << bits) + products[1];
    reinterpret_cast<std::int32_t*>(to + rows * (kRowBytes + sizeof(float)))[row] = sum[0] + sum[4] + sum[8] + sum[12];
  }
  std::memcpy(to + row * kRowBytes, parts, sizeof parts);
}

// The words of four codes that lie in a word of eight.
static inline Vi even_codes(Vi word) { return word & 0x0f0f0f0f; }
static inline Vi odd_codes(Vi word) { return (word >> 4) & 0x0f0f0f0f; }

// Adds to `sum` what a pair's product, of either part, has too much for its codes y0, y1: (y1 + 112) · y0.
static inline Vi add_codes_correction(Vi sum, Vi y0, Vi y1) { return dot_quads(sum, y1 | kRaisedWord, y0); }
// The correction of a whole integer's products, out of that of one part's.
static inline Vi whole_correction(Vi sum) { return (sum << lower_bits(true)) + sum; }

static inline Vi add_bytes(Vi a, Vi b) { return (Vi)_mm512_add_epi8((__m512i)a, (__m512i)b); }

// The sums of kRows rows and two vectors of columns.
template <int kRows, bool kIs4Bit>
struct IntSums {
  Vi at[kRows][2] = {};

  // A turn of 8 words: of the panel's, and of the group's rows at x.
  void multiply(const Vi* panel, const std::byte* x, int turn) {
    x += turn * 8 * sizeof(std::int32_t);
#pragma GCC unroll 2
    for (int k = 0; k < 2; ++k, panel += code_vectors(kIs4Bit) / 4, x += 4 * sizeof(std::int32_t)) {
      Vi y[4][2];
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        if constexpr (kIs4Bit) {
          y[j / 2][j % 2] = j < 4 ? even_codes(panel[j]) : odd_codes(panel[j - 4]);
        } else {
          y[j / 2][j % 2] = panel[j];
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        if constexpr (has_pairs(kIs4Bit)) {
          add_pair(i, x, y);
        } else {
          add_word(i, 0, x, y), add_word(i, 1, x, y);
        }
        // Of other rows: the sums of this one are under way.
        add_word((i + 3) % kRows, 2, x, y), add_word((i + 6) % kRows, 3, x, y);
      }
    }
  }
  void shift() {
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) at[i][0] <<= lower_bits(kIs4Bit), at[i][1] <<= lower_bits(kIs4Bit);
  }
  // Takes away what belongs to pairs: of codes, and of the rows.
  void correct(const Vi* of_codes, const std::int32_t* of_rows) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half)
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) at[i][half] = at[i][half] - of_codes[half] - splati(of_rows[i]);
  }
  Vi row(int i, int half) const { return at[i][half]; }

 private:
  static Vi word(int row, int j, const std::byte* x) {
    return splati(load<std::int32_t>(x + row * kRowBytes + j * sizeof(std::int32_t)));
  }
  void add_word(int row, int j, const std::byte* x, const Vi (&y)[4][2]) {
    const Vi xj = word(row, j, x);
    at[row][0] = dot_quads(at[row][0], y[j][0], xj);
    at[row][1] = dot_quads(at[row][1], y[j][1], xj);
  }
  void add_pair(int row, const std::byte* x, const Vi (&y)[4][2]) {
    const Vi x0 = word(row, 0, x), x1 = word(row, 1, x);
    at[row][0] = dot_quads(at[row][0], add_bytes(x0, y[1][0]), add_bytes(x1, y[0][0]));
    at[row][1] = dot_quads(at[row][1], add_bytes(x0, y[1][1]), add_bytes(x1, y[0][1]));
  }
};

}  // namespace lily::cpu::LILY_ISA
#endif
