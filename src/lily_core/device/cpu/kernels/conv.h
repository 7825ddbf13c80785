// The short causal convolution of the delta net and the normalisation behind it.
#pragma once

#include <cmath>

#include "device/cpu/kernels/norm.h"

namespace lily::cpu::LILY_ISA {

// y[i] = silu(Σ_j weight[first + i][j] · taps[j][first + i]), j = 3 the newest row; `weight` is [C, 4].
static inline void conv_silu(const float* const taps[4], const float* weight, std::uint32_t first, std::uint32_t count,
                             float* y) {
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t c = first + i;
    const float* w = weight + 4 * std::size_t(c);
    y[i] = w[0] * taps[0][c] + w[1] * taps[1][c] + w[2] * taps[2][c] + w[3] * taps[3][c];
  }
  std::uint32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) storef(y + i, silu(loadf(y + i)));
  if (i < count) store_part(y + i, silu(load_part(y + i, count - i)), count - i);
}

// x *= factor / sqrt(Σ x² + 1e-6): the epsilon is added to the sum, not to the mean.
static inline void l2_normalise(float* x, std::uint32_t width, float factor) {
  const float scale = factor / std::sqrt(sum_of_squares(x, width) + 1e-6f);
  for (std::uint32_t i = 0; i < width; ++i) x[i] *= scale;
}

// The log decay: -exp(A_log) softplus(a + dt_bias), never positive.
static inline float log_decay(float A_log, float a, float dt_bias) {
  const float x = a + dt_bias;
  const float softplus = (x > 0 ? x : 0.0f) + std::log1p(std::exp(-std::fabs(x)));
  return -std::exp(A_log) * softplus;
}

}  // namespace lily::cpu::LILY_ISA
