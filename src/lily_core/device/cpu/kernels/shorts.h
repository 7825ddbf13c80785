// Rows of activations as 16-bit integers with one scale a row: x ≈ scale · q, |q| ≤ 32639. The products with codes of at most 8
// bits are exact: the sum over a group of 64 stays below 64 · 255 · 32639 < 2^31.
#pragma once

#include <algorithm>
#include <cstddef>

#include "device/cpu/kernel.h"
#include "device/cpu/kernels/simd.h"

namespace lily::cpu::LILY_ISA {

constexpr float kLargestShort = 32639.0f;  // 127 · 256 + 127: its two bytes are signed numbers
constexpr std::size_t kRowBytes = LILY_GROUP_SIZE * sizeof(std::int16_t);  // of a group of one row

// The scale of a row of `width` numbers, a multiple of 64, that makes integers of at most `most`, and its inverse. The scale of a
// row with an infinite number or a NaN is NaN, and its inverse 0.
struct RowScale {
  RowScale(const float* x, std::uint32_t width, float most) {
    // The bits of positive numbers are in order, with infinity and the NaNs at the end. Four chains hide the latency.
    Vi bits_of[4] = {};
    for (std::uint32_t i = 0; i < width; i += 4 * kLanes)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) bits_of[j] = max(bits_of[j], (Vi)loadf(x + i + j * kLanes) & 0x7fffffff);
    const Vi largest = max(max(bits_of[0], bits_of[1]), max(bits_of[2], bits_of[3]));
    std::int32_t bits = 0;
    for (int i = 0; i < kLanes; ++i) bits = std::max(bits, largest[i]);
    const float bound = load<float>(&bits);
    const bool is_finite = bound < __builtin_inff();
    scale = is_finite ? bound / most : __builtin_nanf("");
    inverse = is_finite && bound > 1e-30f ? most / bound : 0.0f;
  }
  float scale, inverse;
};

// kLanes numbers of a row, as integers.
static inline Vi quantised(const float* x, float inverse) { return round_to_int(loadf(x) * inverse); }

// a + b for sums of them. Those of a row that is not finite mean nothing, and may leave the range.
static inline Vi add_wrapping(Vi a, Vi b) {
  typedef std::uint32_t Vu __attribute__((vector_size(sizeof(Vi))));
  return (Vi)((Vu)a + (Vu)b);
}

// Quantises `width` numbers, a multiple of 64, to `q`; `sums` gets Σ q of each group of 64. Returns the scale.
static inline float quantise_row(const float* x, std::uint32_t width, std::int16_t* q, float* sums) {
  const RowScale row(x, width, kLargestShort);
  for (std::uint32_t i = 0; i < width;) {
    Vi total = {};
    for (const std::uint32_t end = i + LILY_GROUP_SIZE; i < end; i += kLanes) {
      const Vi rounded = quantised(x + i, row.inverse);
      store_shorts(q + i, rounded);
      total = add_wrapping(total, rounded);
    }
    *sums++ = sum(to_float(total));
  }
  return row.scale;
}

}  // namespace lily::cpu::LILY_ISA
