// How memory is shared out between weights, activations and state, and how long a context that leaves room for.
#pragma once

#include <cstdint>
#include <optional>

#include "model/model_config.h"
#include "model/state.h"

namespace lily {

struct MemoryOptions {
  std::optional<std::uint32_t> max_context;         // tokens; none: what fits, at most the model's limit
  std::uint32_t model_context = 0;                  // the model's own limit; 0: unknown
  std::uint64_t limit_bytes = 0;                    // for all of the plan; at most what the device can hold
  std::optional<std::uint64_t> prefix_cache_bytes;  // of them, for snapshots; none: a part of what is left, 0: no snapshots
};

struct MemoryPlan {
  std::uint64_t limit_bytes = 0;
  std::uint64_t weights_bytes = 0;
  std::uint64_t activations_bytes = 0;  // and tables of the step
  std::uint64_t slots_bytes = 0;
  std::uint64_t pages_bytes = 0;
  StateSizes state;
  std::uint32_t max_context = 0;
};

// Of a model with weights of so many bytes, whose config has its precision and traits. Throws MemoryLimitError.
MemoryPlan plan_memory(const ModelConfig& config, const MemoryOptions& options, std::uint64_t weights_bytes);

}  // namespace lily
