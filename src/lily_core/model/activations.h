// What kernels pass to each other within a program, for up to `rows` rows: those of a prefill chunk (DeviceTraits), or of a step
// where that has more. Both programs use the same buffers: they never run at once.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "model/model_config.h"

namespace lily {

constexpr std::uint32_t kMaxStepRows = LILY_MAX_STEP_ROWS;
constexpr std::uint32_t kFewestSplits = 8;  // of the keys in decode attention: work for many cores in short contexts too
constexpr std::uint32_t kMaxSplits = 64;    // of the keys in decode attention

using Tensor = std::unique_ptr<Buffer>;

// Elements are f32 or u32; those marked "operand" have precision.activation_bytes. Some lie in the buffer of another one that no
// kernel needs any more, or not yet, when they are written: what a layer mixes tokens with, and its experts, are never there at
// once.
struct Activations {
  Activations(Device& device, const ModelConfig& config, std::uint32_t num_timelines);

  Range x;       // [rows, H] residual stream
  Range normed;  // [rows, H] operand

  Range qkv;    // [rows, C] operand
  Range z;      // [rows, Hv, dv] operand
  Range ba;     // [rows, 2, Hv]
  Range gdn_q;  // [rows, Hk, dk]
  Range gdn_k;  // [rows, Hk, dk]
  Range gdn_v;  // [rows, Hv, dv]
  Range g;      // [rows, Hv] log decay
  Range beta;   // [rows, Hv]
  Range u;      // [rows, Hv, dv]
  Range w;      // [rows, Hv, dk]
  Range qk;     // [rows, Hv, LILY_DELTA_CHUNK]
  Range o;      // [rows, Hv, dv]
  Range gated;  // [rows, Hv dv] operand

  Range q;        // [rows, Hq, D] operand
  Range gate;     // [rows, Hq, D] operand
  Range k;        // [rows, Hkv, D] operand
  Range v;        // [rows, Hkv, D] operand
  Range partial;  // [kMaxStepRows, Hq, kMaxSplits, D + 2], or [chunk, Hq, D + 2] of a prefill
  Range y;        // [rows, Hq, D] operand

  Range router_logits;  // [rows, E]
  Range shared_gate;    // [rows]
  Range topk_ids;       // [rows, k]
  Range topk_weights;   // [rows, k]
  Range order;          // [rows k] assignments by expert
  Range blocks;         // [max_expert_blocks(rows)]
  Range h;              // [rows k, I] operand
  Range d;              // [rows k, H]
  Range hs;             // [rows, Is] operand
  Range s;              // [rows, H]

  Tensor logits;         // [timelines, V]
  Range adjusted;       // [kMaxStepRows, V]
  Range sample_blocks;  // [kMaxStepRows, ceil(V / LILY_SAMPLE_BLOCK)]

  // All of them.
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::vector<Tensor> buffers_;
  std::uint64_t bytes_ = 0;
};

// Bytes of the buffers above without those that grow with the number of timelines.
std::uint64_t activation_bytes(const ModelConfig& config);

}  // namespace lily
