// What precedes the delta rule: the short causal convolution and the log decay.
#pragma once

#include <cmath>

#include "device/cpu/kernels/activation.h"
#include "device/cpu/kernels/scratch.h"

namespace lily::cpu::LILY_ISA {

// Rows that a convolution reads, the oldest first; each has all C channels.
using ConvRows = const float* const (&)[LILY_CONV_TAPS];

constexpr std::uint32_t kKeptRows = LILY_CONV_TAPS - 1;  // of conv_state: those that the next token's convolution reads

// The convolution of `width` channels, a multiple of the lanes; its weights are turned so that channels are neighbours.
struct ConvChannels {
  ConvChannels(Scratch& scratch, std::uint32_t num_channels)
      : width(num_channels), taps(scratch.take<float>(LILY_CONV_TAPS * std::size_t(width))) {}

  // Takes channels from `first` on of conv_w, [C][4].
  void load_taps(const float* conv_w, std::uint32_t first) {
    begin = first;
    for (std::uint32_t j = 0; j < LILY_CONV_TAPS; ++j)
      for (std::uint32_t i = 0; i < width; ++i) taps[j * width + i] = conv_w[std::size_t(begin + i) * LILY_CONV_TAPS + j];
  }

  // y = silu(Σ_j taps[j] · rows[j]) of these channels.
  void apply(ConvRows rows, float* y) const {
    for (std::uint32_t i = 0; i < width; i += kLanes) {
      Vf total = {};
      for (std::uint32_t j = 0; j < LILY_CONV_TAPS; ++j) total += loadf(taps + j * width + i) * loadf(rows[j] + begin + i);
      storef(y + i, silu(total));
    }
  }

  std::uint32_t begin = 0;
  std::uint32_t width;
  float* taps;  // [LILY_CONV_TAPS][width]
};

// The log decay: -exp(A_log) softplus(a + dt_bias), never positive.
static inline float log_decay(float A_log, float a, float dt_bias) {
  const float x = a + dt_bias;
  const float softplus = (x > 0 ? x : 0.0f) + std::log1p(std::exp(-std::fabs(x)));
  // Bounded, so that sums of decays stay finite whatever the weights hold: e^-1000 is 0 in any case.
  const float decay = std::exp(A_log) * softplus;
  return decay > 1000.0f ? -1000.0f : -decay;
}

}  // namespace lily::cpu::LILY_ISA
