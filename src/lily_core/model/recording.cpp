#include "model/recording.h"

#include <stdexcept>

#include "device/gpu.h"

namespace lily {

Recording::Recording(const std::string& folder, const ModelConfig& config, std::uint32_t max_context, std::uint64_t device_bytes)
    : config_(config), checkpoint_(folder) {
  config_.precision = OutlineDevice::precision();
  config_.traits = gpu_traits(device_bytes);
  config_.max_pages = (max_context + LILY_PAGE_TOKENS - 1) / LILY_PAGE_TOKENS;
  weights_ = load_weights(checkpoint_, config_, device_, {});
  const StateSizes sizes{.num_timelines = kMaxStepRows, .num_pages = config_.max_pages};
  state_ = std::make_unique<State>(device_, config_, sizes);
  activations_ = std::make_unique<Activations>(device_, config_, sizes.num_timelines);
  io_ = std::make_unique<StepIo>(device_, config_, sizes.num_timelines);
  rope_ = device_.allocate("rope", 4ull * config_.rotary_dim, Memory::kPrivate);
  expert_slot_ = device_.allocate("expert_slot", 4ull * config_.num_hidden_layers * config_.num_experts, Memory::kPrivate);
}

Program Recording::decode(std::uint32_t rows, std::uint32_t context) {
  if (rows == 0 || rows > kMaxStepRows) throw std::invalid_argument("a step has 1 to " + std::to_string(kMaxStepRows) + " rows");
  return decode_program(device_, model(), rows, step_bucket(context), false);
}

Program Recording::prefill(std::uint32_t rows) {
  if (rows == 0 || rows > config_.traits.chunk_tokens)
    throw std::invalid_argument("a chunk has 1 to " + std::to_string(config_.traits.chunk_tokens) + " tokens");
  return prefill_program(device_, model(), rows, false);
}

}  // namespace lily
