#include "model/step_io.h"

#include "model/activations.h"

namespace lily {
namespace {

std::uint64_t mask_words(const ModelConfig& config) { return (config.vocab_size + 31) / 32; }

}  // namespace

StepIo::StepIo(Device& device, const ModelConfig& config, std::uint32_t num_timelines)
    : step(device, "step", kMaxStepRows),
      flags(device, "flags", 1),
      tokens(device, "tokens", num_timelines),
      chunk(device, "chunk", config.traits.chunk_tokens),
      samples(device, "samples", num_timelines),
      bias(device, "bias", std::uint64_t{num_timelines} * kMaxBiasEntries),
      mask(device, "mask", num_timelines * mask_words(config)),
      counts(device, "token_counts", std::uint64_t{num_timelines} * config.vocab_size),
      results(device, "results", num_timelines) {}

std::uint64_t step_io_bytes_per_timeline(const ModelConfig& config) {
  return sizeof(std::uint32_t) + sizeof(SampleRow) + sizeof(SampleResult) + kMaxBiasEntries * sizeof(BiasEntry) +
         4 * mask_words(config) + 8ull * config.vocab_size;
}

}  // namespace lily
