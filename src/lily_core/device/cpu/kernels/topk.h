// The routing rule of the model, shared by both programs.
#pragma once

#include <cmath>
#include <cstdint>

namespace lily::cpu::LILY_ISA {

// ids = the k largest logits, larger first, ties to the lower id; weights = softmax over those k.
static inline void choose_experts(const float* logits, std::uint32_t experts, std::uint32_t k, std::uint32_t* ids,
                                  float* weights) {
  // `weights` holds the chosen logits until the end. An id that comes later never displaces an equal one.
  std::uint32_t count = 0;
  for (std::uint32_t e = 0; e < experts; ++e) {
    if (count == k && !(logits[e] > weights[k - 1])) continue;
    std::uint32_t at = count < k ? count++ : k - 1;
    for (; at > 0 && logits[e] > weights[at - 1]; --at) ids[at] = ids[at - 1], weights[at] = weights[at - 1];
    ids[at] = e;
    weights[at] = logits[e];
  }
  const float largest = weights[0];
  float total = 0;
  for (std::uint32_t i = 0; i < k; ++i) total += weights[i] = std::exp(weights[i] - largest);
  for (std::uint32_t i = 0; i < k; ++i) weights[i] /= total;
}

// Where `id` first stands in ids[0, count), or count.
static inline std::uint32_t position_of(std::uint32_t id, const std::uint32_t* ids, std::uint32_t count) {
  std::uint32_t i = 0;
  while (i < count && ids[i] != id) ++i;
  return i;
}

}  // namespace lily::cpu::LILY_ISA
