// The nonlinear functions of the model, and sums over simdgroups and threadgroups.
#pragma once

#include <metal_stdlib>

#include "lily_grid.h"

using namespace metal;

// What a thread knows of itself.
struct Thread {
  uint index;  // in the threadgroup
  uint simdgroup;
  uint lane;
};

// Infinite becomes NaN, which no later function hides: the sigmoid of an infinite gate would be 1, a row over an infinite norm 0.
static inline float poisoned(float y) { return y + y * 0.0f; }
// y as a half; NaN where it is more than a half holds.
static inline half poisoned_half(float y) { return half(poisoned(float(half(y)))); }

static inline float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
static inline float silu(float x) { return x * sigmoid(x); }

// log(1 + x) for x in [0, 1], as 2 atanh(x / (2 + x)): Metal has no log1p, and log(1 + x) loses the decays near 1.
static inline float log_1_plus(float x) {
  const float t = x / (2.0f + x), t2 = t * t;
  float sum = 1.0f / 15.0f;
  sum = sum * t2 + 1.0f / 13.0f;
  sum = sum * t2 + 1.0f / 11.0f;
  sum = sum * t2 + 1.0f / 9.0f;
  sum = sum * t2 + 1.0f / 7.0f;
  sum = sum * t2 + 1.0f / 5.0f;
  sum = sum * t2 + 1.0f / 3.0f;
  return 2.0f * (t + t * t2 * sum);
}

// The delta net's log decay: -exp(A_log) softplus(a + dt_bias), never positive. Bounded, so that sums of decays stay finite; NaN
// stays NaN, which min() would hide.
static inline float log_decay(float A_log, float a, float dt_bias) {
  const float x = a + dt_bias;
  const float decay = exp(A_log) * (max(x, 0.0f) + log_1_plus(exp(-fabs(x))));
  return decay > 1000.0f ? -1000.0f : -decay;
}

// Sum over aligned groups of WIDTH neighbouring lanes, WIDTH a power of two; every lane gets its group's.
template <uint WIDTH>
static inline float lanes_sum(float value) {
  if (WIDTH == LILY_SIMD_WIDTH) return simd_sum(value);
#pragma clang loop unroll(full)
  for (ushort step = WIDTH / 2u; step > 0; step /= 2u) value += simd_shuffle_xor(value, step);
  return value;
}

// The sum of what the simdgroups of a threadgroup left in `parts`.
template <uint PARTS>
static inline float parts_sum(threadgroup const float* parts) {
  float total = 0.0f;
#pragma clang loop unroll(full)
  for (uint i = 0; i < PARTS; ++i) total += parts[i];
  return total;
}
