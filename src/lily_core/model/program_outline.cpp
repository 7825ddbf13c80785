#include "model/program_outline.h"

#include <stdexcept>

#include "device/gpu.h"
#include "model/programs.h"

namespace lily {

ProgramOutline::ProgramOutline(const std::string& folder, const ModelConfig& model_config, std::uint32_t max_context,
                     std::uint64_t device_bytes)
    : checkpoint_(folder) {
  ModelConfig config = model_config;
  config.precision = OutlineDevice::precision();
  config.traits = gpu_traits(device_bytes);
  config.max_pages = pages_for(max_context);
  const StateSizes sizes{.num_timelines = kMaxStepRows, .num_pages = config.max_pages};
  model_ = std::make_unique<Model>(device_, config, load_weights(checkpoint_, config, device_, {}), sizes);
}

Program ProgramOutline::decode(std::uint32_t rows, std::uint32_t context) {
  if (rows == 0 || rows > kMaxStepRows) throw std::invalid_argument("a step has 1 to " + std::to_string(kMaxStepRows) + " rows");
  return decode_program(device_, *model_, rows, step_bucket(context), false);
}

Program ProgramOutline::prefill(std::uint32_t rows) {
  if (rows == 0 || rows > model_->config.traits.chunk_tokens)
    throw std::invalid_argument("a chunk has 1 to " + std::to_string(model_->config.traits.chunk_tokens) + " tokens");
  return prefill_program(device_, *model_, rows, false);
}

}  // namespace lily
