// Weights on their way from a checkpoint to a device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/buffer.h"

namespace lily {

class TensorSource;  // model/tensor_source.h

// What a weight is used for; a device may choose a layout by it.
enum class WeightRole : std::uint8_t {
  kEmbedding,      // rows gathered by token id
  kMatrix,         // y = W x
  kGateUp,         // two matrices of one shape, gate and up, applied together (shared expert)
  kExpertsGateUp,  // the same with a leading expert axis
  kExperts,        // [experts, rows, columns]
};

// A matrix quantised with MLX affine groups of 64: codes, scales and biases as they lie in the checkpoint.
struct HostMatrix {
  std::string module;  // name in the checkpoint, for messages
  std::uint32_t bits = 0;  // 4 or 8
  const TensorSource* codes = nullptr;   // U32 [experts, rows, columns * bits / 32]
  const TensorSource* scales = nullptr;  // BF16, F16 or F32 [experts, rows, columns / 64]
  const TensorSource* biases = nullptr;
  std::uint32_t rows = 0;  // rows stored, per expert
  // Rows in the order in which the model wants them (qwen3_next interleaves, q_proj mixes query and gate); empty: as stored.
  std::vector<std::uint32_t> row_order;
};

// One or more matrices that one kernel reads. Parts are stacked along the rows, except for the gate-up roles (exactly two parts).
struct HostWeight {
  std::string name;
  WeightRole role = WeightRole::kMatrix;
  std::uint32_t experts = 1;
  std::uint32_t columns = 0;
  std::vector<HostMatrix> parts;

  // What a kernel binds as one matrix each: gate and up, or all parts stacked.
  std::vector<std::span<const HostMatrix>> matrices() const {
    const std::span<const HostMatrix> all = parts;
    if (role == WeightRole::kGateUp || role == WeightRole::kExpertsGateUp) return {all.first(1), all.subspan(1)};
    return {all};
  }
};

// What a kernel binds for a weight: `format` is part of the kernel's name, `ranges` its buffers in order.
struct PreparedWeight {
  std::string format;  // "q4g64" (BF16 pairs), "q4g64w" (F32 pairs), "q8g64", "q8g64w", or one of the device's own
  std::vector<Range> ranges;
  std::vector<std::unique_ptr<Buffer>> owned;
  std::uint64_t mapped_bytes = 0;  // used where they lie in the file
  std::uint64_t copied_bytes = 0;  // read or repacked into memory of their own
};

}  // namespace lily
