// What the host writes before a step and reads after it. Shared memory; row numbers of timelines index all tables.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "device/device.h"
#include "model/model_config.h"

namespace lily {

constexpr std::uint32_t kMaxBiasEntries = 1024;  // per timeline

// `count` rows of T in a shared buffer.
template <typename T>
class Table {
 public:
  Table(Device& device, const char* name, std::uint64_t count)
      : buffer_(device.allocate(name, count * sizeof(T), Memory::kShared)), count_(count) {}
  std::unique_ptr<Buffer>& buffer() { return buffer_; }
  std::span<T> rows() { return {static_cast<T*>(buffer_->contents()), count_}; }
  T& operator[](std::uint64_t row) { return rows()[row]; }

 private:
  std::unique_ptr<Buffer> buffer_;
  std::uint64_t count_;
};

struct StepIo {
  StepIo(Device& device, const ModelConfig& config, std::uint32_t num_timelines);

  Table<StepRow> step;            // [kMaxStepRows]
  Table<StepFlags> flags;         // [1]
  Table<std::uint32_t> tokens;    // [timelines] input of the next step, written by the host or by sample_pick
  Table<std::uint32_t> chunk;     // [traits.chunk_tokens] token ids of a prefill chunk
  Table<SampleRow> samples;       // [timelines]
  Table<BiasEntry> bias;          // [timelines, kMaxBiasEntries]
  Table<std::uint32_t> mask;      // [timelines, ceil(V / 32)] bit v % 32 of word v / 32: token v may be drawn
  Table<std::uint32_t> counts;    // [timelines, V]
  Table<SampleResult> results;    // [timelines]
};

// Bytes of StepIo and of the logits that each timeline adds.
std::uint64_t step_io_bytes_per_timeline(const ModelConfig& config);

}  // namespace lily
