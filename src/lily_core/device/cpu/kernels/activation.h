// The nonlinear functions of the model, on vectors and on single numbers.
#pragma once

#include <cmath>

#include "device/cpu/kernels/simd.h"

namespace lily::cpu::LILY_ISA {

// Infinite becomes NaN, which no later function hides: the sigmoid of an infinite gate would be 1, a row over an infinite norm 0.
static inline float poisoned(float y) { return y + y * 0.0f; }
static inline Vf poisoned(Vf y) { return y + y * 0.0f; }

static inline float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
static inline Vf sigmoid(Vf x) { return 1.0f / (1.0f + exp(-x)); }
static inline Vf silu(Vf x) { return x * sigmoid(x); }

// h = silu(gate) · up
static inline void swiglu(const float* gate, const float* up, std::uint32_t count, float* h) {
  std::uint32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) storef(h + i, silu(loadf(gate + i)) * loadf(up + i));
  if (i < count) store_part(h + i, silu(load_part(gate + i, count - i)) * load_part(up + i, count - i), count - i);
}

}  // namespace lily::cpu::LILY_ISA
