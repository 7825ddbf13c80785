// Norms of one row, the prologue of most kernels. Widths are multiples of a quantisation group, so of the lanes.
#pragma once

#include <cmath>

#include "device/cpu/kernels/activation.h"
#include "device/cpu/kernels/simd.h"

namespace lily::cpu::LILY_ISA {

// NaN where it is more than a float holds.
static inline float sum_of_squares(const float* x, std::uint32_t width) {
  Vf acc[2] = {};
  for (std::uint32_t i = 0; i < width; i += 2 * kLanes)
    for (int j = 0; j < 2; ++j) acc[j] += loadf(x + i + j * kLanes) * loadf(x + i + j * kLanes);
  return poisoned(sum(acc[0] + acc[1]));
}

// y = gain x / sqrt(mean(x²) + eps); y may be x.
static inline void norm_row(const float* x, const float* gain, std::uint32_t width, float eps, float* y) {
  const float scale = 1.0f / std::sqrt(sum_of_squares(x, width) / float(width) + eps);
  for (std::uint32_t i = 0; i < width; i += kLanes) storef(y + i, loadf(gain + i) * (loadf(x + i) * scale));
}

// y = gain o / sqrt(mean(o²) + eps) · silu(z): the delta net's norm of one head.
static inline void gated_norm_row(const float* o, const float* z, const float* gain, std::uint32_t width, float eps, float* y) {
  norm_row(o, gain, width, eps, y);
  for (std::uint32_t i = 0; i < width; i += kLanes) storef(y + i, loadf(y + i) * silu(loadf(z + i)));
}

// x *= factor / sqrt(Σ x² + 1e-6): the epsilon is added to the sum, not to the mean.
static inline void l2_normalise(float* x, std::uint32_t width, float factor) {
  const float scale = factor / std::sqrt(sum_of_squares(x, width) + 1e-6f);
  for (std::uint32_t i = 0; i < width; i += kLanes) storef(x + i, loadf(x + i) * scale);
}

}  // namespace lily::cpu::LILY_ISA
