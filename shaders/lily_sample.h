// What the sampling kernels share.
#pragma once

#include "lily_args.h"
#include "lily_math.h"

// The adjusted logit of a token that must not be drawn: masks are finite. Real logits lie far above LILY_LEAST_LOGIT.
#define LILY_FORBIDDEN (-3.4e38f)
#define LILY_LEAST_LOGIT (-1e38f)

// A value and the first place that has it, over a simdgroup.
struct Best {
  float value;
  uint place;
};
static inline Best simd_best(float value, uint place) {
  Best best;
  best.value = simd_max(value);
  best.place = simd_min(value == best.value ? place : 0xffffffffu);
  return best;
}

// The same over a threadgroup, from what its simdgroups left in `values` and `places`.
template <uint PARTS>
static inline Best parts_best(threadgroup const float* values, threadgroup const uint* places) {
  Best best = {values[0], places[0]};
  for (uint i = 1; i < PARTS; ++i) {
    if (values[i] > best.value || (values[i] == best.value && places[i] < best.place)) {
      best.value = values[i];
      best.place = places[i];
    }
  }
  return best;
}
