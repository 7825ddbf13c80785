// The routing rule of the model, shared by both programs.
#pragma once

#include <cmath>
#include <cstdint>

#include "device/cpu/kernel.h"

namespace lily::cpu::LILY_ISA {

// Whether a logit comes before an earlier one, which it does not when they are equal. NaN is the largest: it must not hide among
// those that are not chosen.
static inline bool comes_before(float logit, float earlier) { return !(logit <= earlier) && earlier == earlier; }

// ids = the k largest logits, larger first, ties to the lower id; weights = softmax over those k, NaN if a logit is.
static inline void choose_experts(const float* logits, std::uint32_t experts, std::uint32_t k, std::uint32_t* ids,
                                  float* weights) {
  // `weights` holds the chosen logits until the end. An id that comes later never displaces an equal one.
  std::uint32_t count = 0;
  for (std::uint32_t e = 0; e < experts; ++e) {
    if (count == k && !comes_before(logits[e], weights[k - 1])) continue;
    std::uint32_t at = count < k ? count++ : k - 1;
    for (; at > 0 && comes_before(logits[e], weights[at - 1]); --at) ids[at] = ids[at - 1], weights[at] = weights[at - 1];
    ids[at] = e;
    weights[at] = logits[e];
  }
  const float largest = weights[0];
  float total = 0;
  for (std::uint32_t i = 0; i < k; ++i) total += weights[i] = std::exp(weights[i] - largest);
  for (std::uint32_t i = 0; i < k; ++i) weights[i] /= total;
}

// The experts among ids[0, count) whose weights are there, each once: `firsts` gets where they first stand. Returns how many.
static inline std::uint32_t distinct_experts(const std::uint32_t* ids, std::uint32_t count, const std::uint32_t* expert_slot,
                                             std::uint32_t* firsts) {
  std::uint32_t found = 0;
  for (std::uint32_t a = 0; a < count; ++a) {
    std::uint32_t i = 0;
    while (i < found && ids[firsts[i]] != ids[a]) ++i;
    if (i == found && expert_slot[ids[a]] != LILY_NO_EXPERT) firsts[found++] = a;
  }
  return found;
}

}  // namespace lily::cpu::LILY_ISA
