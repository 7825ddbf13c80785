// What the host writes before a step and reads after it. Shared memory; row numbers of timelines index all tables.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "device/device.h"
#include "model/model_config.h"
#include "model/sampling.h"
#include "model/state.h"

namespace lily {

constexpr std::uint32_t kMaxBiasEntries = 1024;  // per timeline

// Rows of `width` T in a shared buffer.
template <typename T>
class Table {
 public:
  Table(Device& device, const char* name, std::uint64_t rows, std::size_t width = 1)
      : buffer_(device.allocate(name, rows * width * sizeof(T), Memory::kShared)), width_(width) {}
  const std::unique_ptr<Buffer>& buffer() const { return buffer_; }
  std::span<T> row(std::uint64_t index) const { return {static_cast<T*>(buffer_->contents()) + index * width_, width_}; }
  T& operator[](std::uint64_t index) const { return row(index).front(); }

 private:
  std::unique_ptr<Buffer> buffer_;
  std::size_t width_;
};

struct StepIo {
  StepIo(Device& device, const ModelConfig& config, std::uint32_t num_timelines);

  Table<StepRow> step;            // [kMaxStepRows]
  Table<StepFlags> flags;         // [1]
  Table<std::uint32_t> tokens;    // [timelines] input of the next step, written by the host or by sample_pick
  Table<std::uint32_t> chunk;     // [1, traits.chunk_tokens] token ids of a prefill chunk
  Table<SampleRow> samples;       // [timelines]
  Table<BiasEntry> bias;          // [timelines, kMaxBiasEntries]
  Table<std::uint32_t> mask;      // [timelines, ceil(V / 32)] bit v % 32 of word v / 32: token v may be drawn
  Table<std::uint32_t> counts;    // [timelines, V]
  Table<SampleResult> results;    // [timelines]

  // Row `row` of the step, at `position`, from the timeline's slot to its spare one. With `sampling` the next token is drawn.
  // Throws std::invalid_argument for more than kMaxBiasEntries of bias.
  void write(std::uint32_t row, const Timeline& timeline, std::uint32_t position, bool wants_logits, const Sampling* sampling);
  // What was drawn for the timeline, if `sampling` asked for it. Throws std::invalid_argument when every token is forbidden.
  std::optional<SampleResult> result(const Timeline& timeline, const Sampling* sampling) const;

  // Tokens that the penalties count. Ids are below V.
  void count_tokens(const Timeline& timeline, std::span<const std::uint32_t> prompt_ids,
                    std::span<const std::uint32_t> output_ids);
  // The rows that last beyond a step: counts, mask and drawn token.
  void copy(const Timeline& from, const Timeline& to);

 private:
  std::uint32_t max_pages_;  // of a timeline in the page table
  DeviceTraits traits_;
};

// Bytes of StepIo and of the logits that each timeline adds.
std::uint64_t step_io_bytes_per_timeline(const ModelConfig& config);

}  // namespace lily
