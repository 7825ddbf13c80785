#include "model/step_io.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "model/activations.h"
#include "model/programs.h"

namespace lily {
namespace {

std::size_t mask_words(const ModelConfig& config) { return (config.vocab_size + 31) / 32; }

}  // namespace

StepIo::StepIo(Device& device, const ModelConfig& config, std::uint32_t num_timelines)
    : step(device, "step", kMaxStepRows),
      flags(device, "flags", 1),
      tokens(device, "tokens", num_timelines),
      chunk(device, "chunk", 1, config.traits.chunk_tokens),
      samples(device, "samples", num_timelines),
      bias(device, "bias", num_timelines, kMaxBiasEntries),
      mask(device, "mask", num_timelines, mask_words(config)),
      counts(device, "token_counts", num_timelines, config.vocab_size),
      results(device, "results", num_timelines),
      max_pages_(config.max_pages),
      traits_(config.traits) {}

void StepIo::write(std::uint32_t row, const Timeline& timeline, std::uint32_t position, bool wants_logits,
                   const Sampling* sampling) {
  step[row] = {.token_slot = timeline.row,
               .position = position,
               .slot_in = timeline.slot,
               .slot_out = timeline.spare,
               .page_begin = timeline.row * max_pages_,
               .sample_row = sampling ? timeline.row : LILY_NO_SAMPLE,
               .timeline = timeline.row,
               .wants_logits = wants_logits,
               .keys_per_split = keys_per_split(traits_, std::uint64_t{position} + 1)};
  if (!sampling) return;
  if (sampling->bias.size() > kMaxBiasEntries)
    throw std::invalid_argument("logit_bias has " + std::to_string(sampling->bias.size()) + " entries; at most " +
                                std::to_string(kMaxBiasEntries) + " are supported");
  SampleRow& sample = samples[timeline.row];
  sample = sampling->row;
  sample.bias_begin = timeline.row * kMaxBiasEntries;
  sample.bias_end = sample.bias_begin + static_cast<lily_u32>(sampling->bias.size());
  sample.uses_mask = timeline.has_mask;
  sample.uses_counts = sample.presence_penalty != 0 || sample.frequency_penalty != 0 || sample.repetition_penalty != 1;
  sample.token_slot = timeline.row;
  std::ranges::copy(sampling->bias, bias.row(timeline.row).begin());
}

std::optional<SampleResult> StepIo::result(const Timeline& timeline, const Sampling* sampling) const {
  if (!sampling) return std::nullopt;
  const SampleResult& drawn = results[timeline.row];
  if (drawn.token_id == LILY_NO_SAMPLE)
    throw std::invalid_argument("no token may be drawn: logit_bias and the token mask forbid the whole vocabulary");
  return drawn;
}

void StepIo::count_tokens(const Timeline& timeline, std::span<const std::uint32_t> prompt_ids,
                          std::span<const std::uint32_t> output_ids) {
  const std::span<std::uint32_t> row = counts.row(timeline.row);
  std::ranges::fill(row, 0);
  for (const std::uint32_t id : prompt_ids) row[id] |= LILY_COUNT_IN_PROMPT;
  for (const std::uint32_t id : output_ids) ++row[id];
}

void StepIo::copy(const Timeline& from, const Timeline& to) {
  std::ranges::copy(counts.row(from.row), counts.row(to.row).begin());
  std::ranges::copy(mask.row(from.row), mask.row(to.row).begin());
  tokens[to.row] = tokens[from.row];
}

std::uint64_t step_io_bytes_per_timeline(const ModelConfig& config) {
  return sizeof(std::uint32_t) + sizeof(SampleRow) + sizeof(SampleResult) + kMaxBiasEntries * sizeof(BiasEntry) +
         4 * mask_words(config) + 8ull * config.vocab_size;
}

}  // namespace lily
