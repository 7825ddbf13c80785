// The routing rule of the model, by one simdgroup: the k largest logits, larger first, ties to the lower id.
#pragma once

#include "lily_math.h"

#define LILY_LOGITS_PER_LANE ((LILY_NUM_EXPERTS + LILY_SIMD_WIDTH - 1u) / LILY_SIMD_WIDTH)
#define LILY_TAKEN (-3.4e38f)  // in place of a logit that has been chosen, or of none

struct Chosen {
  uint id;
  float logit;
};

// What is left of one row of router logits; lane l holds those of experts l, l + 32, …
struct Router {
  float logits[LILY_LOGITS_PER_LANE];
  float poison;  // NaN if a logit is not finite, which must not hide among those that are not chosen; else 0

  void load(device const float* row, uint lane) thread {
    poison = 0.0f;
#pragma clang loop unroll(full)
    for (uint i = 0; i < LILY_LOGITS_PER_LANE; ++i) {
      const uint id = i * LILY_SIMD_WIDTH + lane;
      logits[i] = id < LILY_NUM_EXPERTS ? row[id] : LILY_TAKEN;
      poison += logits[i] * 0.0f;
    }
    poison = simd_sum(poison);
  }
  // Takes the next one; every lane gets it.
  Chosen take(uint lane) thread {
    float best = LILY_TAKEN;
#pragma clang loop unroll(full)
    for (uint i = 0; i < LILY_LOGITS_PER_LANE; ++i) best = max(best, logits[i]);
    Chosen chosen;
    chosen.logit = simd_max(best);
    uint id = LILY_NUM_EXPERTS - 1u;  // a name even when no logit is a number: lm_head will see it
#pragma clang loop unroll(full)
    for (uint i = 0; i < LILY_LOGITS_PER_LANE; ++i)
      if (logits[i] == chosen.logit) id = min(id, i * LILY_SIMD_WIDTH + lane);
    chosen.id = simd_min(id);
#pragma clang loop unroll(full)
    for (uint i = 0; i < LILY_LOGITS_PER_LANE; ++i)
      if (i * LILY_SIMD_WIDTH + lane == chosen.id) logits[i] = LILY_TAKEN;
    chosen.logit += poison;
    return chosen;
  }
};
