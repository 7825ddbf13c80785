// RMSNorm of one row, the prologue of most kernels.
#pragma once

#include <cmath>

#include "device/cpu/kernels/simd.h"

namespace lily::cpu::LILY_ISA {

static inline float sum_of_squares(const float* x, std::uint32_t width) {
  Vf acc[2] = {};
  std::uint32_t i = 0;
  for (; i + 2 * kLanes <= width; i += 2 * kLanes)
    for (int j = 0; j < 2; ++j) acc[j] += loadf(x + i + j * kLanes) * loadf(x + i + j * kLanes);
  float total = sum(acc[0] + acc[1]);
  for (; i < width; ++i) total += x[i] * x[i];
  return total;
}

// y = gain x / sqrt(mean(x²) + eps); y may be x.
static inline void norm_row(const float* x, const float* gain, std::uint32_t width, float eps, float* y) {
  const float scale = 1.0f / std::sqrt(sum_of_squares(x, width) / float(width) + eps);
  std::uint32_t i = 0;
  for (; i + kLanes <= width; i += kLanes) storef(y + i, loadf(gain + i) * (loadf(x + i) * scale));
  for (; i < width; ++i) y[i] = gain[i] * (x[i] * scale);
}

// y = gain o / sqrt(mean(o²) + eps) · silu(z): the delta net's norm of one head.
static inline void gated_norm_row(const float* o, const float* z, const float* gain, std::uint32_t width, float eps, float* y) {
  norm_row(o, gain, width, eps, y);
  std::uint32_t i = 0;
  for (; i + kLanes <= width; i += kLanes) storef(y + i, loadf(y + i) * silu(loadf(z + i)));
  if (i < width) store_part(y + i, load_part(y + i, width - i) * silu(load_part(z + i, width - i)), width - i);
}

}  // namespace lily::cpu::LILY_ISA
