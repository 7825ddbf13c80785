// Rows of activations as 16-bit integers with one scale a row: x ≈ scale · q, |q| ≤ 32767. The products with codes of at most 8
// bits are exact: the sum over a group of 64 stays below 64 · 255 · 32767 < 2^31.
#pragma once

#include <cmath>

#include "device/cpu/kernels/simd.h"

namespace lily::cpu::LILY_ISA {

// Quantises `width` numbers, a multiple of 64, to `q`; `sums` gets Σ q of each group of 64. Returns the scale, which is not a
// finite number when some x is not.
static inline float quantise_row(const float* x, std::uint32_t width, std::int16_t* q, float* sums) {
  Vf most = {}, poison = {};
  for (std::uint32_t i = 0; i < width; i += kLanes) {
    const Vf v = loadf(x + i);
    most = max(most, max(v, -v));
    poison += v * 0.0f;  // 0, or NaN for what is not finite
  }
  const float bound = largest(most);
  const Vf inverse = splat(bound > 1e-30f && bound < __builtin_inff() ? 32767.0f / bound : 0.0f);
  for (std::uint32_t i = 0; i < width;) {
    Vi total = {};
    for (const std::uint32_t end = i + LILY_GROUP_SIZE; i < end; i += kLanes) {
      const Vi rounded = round_to_int(loadf(x + i) * inverse);
      store_shorts(q + i, rounded);
      total += rounded;
    }
    *sums++ = sum(to_float(total));
  }
  return bound / 32767.0f + sum(poison);
}

// Infinite becomes NaN, which no later function hides: the sigmoid of an infinite gate would be 1.
static inline float poisoned(float y) { return y + y * 0.0f; }
static inline Vf poisoned(Vf y) { return y + y * 0.0f; }

// The same in the order of FreshPanel: of 8 neighbours 0, 4, 1, 5, 2, 6, 3, 7.
static inline float quantise_tile_row(const float* x, std::uint32_t width, std::int16_t* q, float* sums) {
  const float scale = quantise_row(x, width, q, sums);
  typedef std::int16_t Eight __attribute__((vector_size(16)));
  for (std::uint32_t i = 0; i < width; i += 8) {
    const Eight v = load<Eight>(q + i);
    const Eight ordered = __builtin_shuffle(v, Eight{0, 4, 1, 5, 2, 6, 3, 7});
    std::memcpy(q + i, &ordered, sizeof ordered);
  }
  return scale;
}

}  // namespace lily::cpu::LILY_ISA
