// The weights of a whole model on a device. A PreparedWeight is a quantised matrix [rows, columns], a vector is f32.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "device/device.h"
#include "model/checkpoint.h"
#include "model/model_config.h"

namespace lily {

// H hidden, V vocabulary, D head_dim, Hq / Hkv query / KV heads, Hk / Hv key / value heads of the delta net, dk / dv their sizes,
// C = 2 Hk dk + Hv dv conv channels, E experts, I / Is expert / shared width.
using Vector = std::unique_ptr<Buffer>;

struct MoeWeights {
  Vector norm;                  // [H] gain of post_attention_layernorm
  PreparedWeight router;        // [E + 1, H] gate, then shared_expert_gate
  PreparedWeight experts_up;    // [E, I, H] gate_proj and up_proj
  PreparedWeight experts_down;  // [E, H, I]
  PreparedWeight shared_up;     // [Is, H] gate_proj and up_proj
  PreparedWeight shared_down;   // [H, Is]
};

struct LinearLayerWeights {
  Vector input_norm;       // [H] gain of input_layernorm
  PreparedWeight gdn_in;   // [C + Hv dv + 2 Hv, H] q, k, v · z · b · a
  Vector conv1d;           // [C, 4] tap 3 is the newest
  Vector A_log;            // [Hv]
  Vector dt_bias;          // [Hv]
  Vector norm;             // [dv] a plain gain
  PreparedWeight gdn_out;  // [H, Hv dv]
  MoeWeights moe;
};

struct AttentionLayerWeights {
  Vector input_norm;        // [H] gain of input_layernorm
  PreparedWeight attn_in;   // [2 Hq D + 2 Hkv D, H] query of all heads · gate of all heads · k · v
  Vector q_norm;            // [D]
  Vector k_norm;            // [D]
  PreparedWeight attn_out;  // [H, Hq D]
  MoeWeights moe;
};

struct Weights {
  PreparedWeight embed_tokens;                          // [V, H]
  std::vector<LinearLayerWeights> linear_layers;        // in the order of the model
  std::vector<AttentionLayerWeights> attention_layers;  // in the order of the model
  Vector norm;                                          // [H] final gain
  PreparedWeight lm_head;                               // [V, H]

  std::uint64_t mapped_bytes = 0;  // used where they lie in the files
  std::uint64_t copied_bytes = 0;  // in memory of their own
};

// Called from the loading thread; what it throws ends the load.
using LoadProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

// Takes every tensor of the model, checked against `config`. `checkpoint` must outlive the weights.
// Throws CheckpointError naming the tensor or module at fault.
Weights load_weights(Checkpoint& checkpoint, const ModelConfig& config, Device& device, const LoadProgress& progress);

}  // namespace lily
