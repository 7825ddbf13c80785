// What kernels pass to each other within a program, for up to `rows` rows: those of a prefill chunk (DeviceTraits), or of a step
// where that has more. Both programs use the same buffers: they never run at once.
#pragma once

#include <cstdint>
#include <memory>

#include "device/device.h"
#include "model/model_config.h"

namespace lily {

constexpr std::uint32_t kMaxStepRows = LILY_MAX_STEP_ROWS;
constexpr std::uint32_t kMaxSplits = 64;   // of the keys in decode attention

using Tensor = std::unique_ptr<Buffer>;

// Elements are f32 or u32; those marked "operand" have precision.activation_bytes.
struct Activations {
  Activations(Device& device, const ModelConfig& config, std::uint32_t num_timelines);

  Tensor x;       // [rows, H] residual stream
  Tensor normed;  // [rows, H] operand

  Tensor qkv;    // [rows, C] operand
  Tensor z;      // [rows, Hv, dv] operand
  Tensor ba;     // [rows, 2, Hv]
  Tensor gdn_q;  // [rows, Hk, dk]
  Tensor gdn_k;  // [rows, Hk, dk]
  Tensor gdn_v;  // [rows, Hv, dv]
  Tensor g;      // [rows, Hv] log decay
  Tensor beta;   // [rows, Hv]
  Tensor u;      // [rows, Hv, dv]
  Tensor w;      // [rows, Hv, dk]
  Tensor qk;     // [rows, Hv, LILY_DELTA_CHUNK]
  Tensor o;      // [rows, Hv, dv]
  Tensor gated;  // [rows, Hv dv] operand

  Tensor q;        // [rows, Hq, D] operand
  Tensor gate;     // [rows, Hq, D] operand
  Tensor k;        // [rows, Hkv, D] operand
  Tensor v;        // [rows, Hkv, D] operand
  Tensor partial;  // [kMaxStepRows, Hq, kMaxSplits, D + 2], or [chunk, Hq, D + 2] of a prefill
  Tensor y;        // [rows, Hq, D] operand

  Tensor router_logits;  // [rows, E]
  Tensor shared_gate;    // [rows]
  Tensor topk_ids;       // [rows, k]
  Tensor topk_weights;   // [rows, k]
  Tensor order;          // [rows k] assignments by expert
  Tensor blocks;         // [max_expert_blocks(rows)]
  Tensor h;              // [rows k, I] operand
  Tensor d;              // [rows k, H]
  Tensor hs;             // [rows, Is] operand
  Tensor s;              // [rows, H]

  Tensor logits;         // [timelines, V]
  Tensor adjusted;       // [kMaxStepRows, V]
  Tensor sample_blocks;  // [kMaxStepRows, ceil(V / LILY_SAMPLE_BLOCK)]

  // All of them.
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::uint64_t bytes_ = 0;
};

// Bytes of the buffers above without those that grow with the number of timelines.
std::uint64_t activation_bytes(const ModelConfig& config);

}  // namespace lily
