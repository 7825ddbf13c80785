// The prefill program: every kernel of one chunk of a prompt, in the order of docs/design/model.md section 3.
#include <algorithm>

#include "model/programs.h"
#include "model/recorder.h"

namespace lily {
namespace {

// Fewer rows do not fill a GPU: a dispatch of them takes about as long as one of so many.
constexpr std::uint32_t kFullAttention = 128;

// Keys that one dispatch of attn_prefill takes: over a long context one of all keys would hold a GPU for longer than its system
// allows.
std::uint32_t attention_keys(const ModelConfig& c, std::uint32_t rows) {
  const double key_flops = 4.0 * c.num_attention_heads * c.head_dim * std::max(rows, kFullAttention);
  const double pages = c.traits.attention_flops / key_flops / LILY_PAGE_TOKENS;
  return static_cast<std::uint32_t>(std::clamp<double>(pages, 1, c.max_pages)) * LILY_PAGE_TOKENS;
}

void record_gated_delta_net(Recorder& op, const Model& m, const LinearLayerWeights& w, std::uint32_t layer, std::uint32_t rows) {
  auto& [c, weights, state, a, io, rope, slots] = m;
  const RowsArgs args{rows};
  const LayerArgs layer_args{rows, layer};
  const std::uint32_t in_rows = c.conv_channels() + c.value_dim() + 2 * c.linear_num_value_heads;
  op("rms_norm", args, {a.x, w.input_norm, a.normed}, {rows});
  op.tile("gdn_in", args, {a.normed, w.gdn_in, a.qkv, a.z, a.ba}, {in_rows, rows});
  op("gdn_conv", layer_args,
     {io.step.buffer(), a.qkv, a.ba, w.conv1d, w.A_log, w.dt_bias, state.conv_state, a.gdn_q, a.gdn_k, a.gdn_v, a.g, a.beta},
     {c.linear_num_key_heads, rows});
  op("gdn_chunk", args, {a.gdn_q, a.gdn_k, a.gdn_v, a.g, a.beta, a.u, a.w, a.qk},
     {c.linear_num_value_heads, (rows + LILY_DELTA_CHUNK - 1) / LILY_DELTA_CHUNK});
  op("gdn_scan", layer_args, {io.step.buffer(), a.gdn_q, a.gdn_k, a.u, a.w, a.qk, a.g, state.recurrent_state, a.o},
     {c.linear_value_head_dim, c.linear_num_value_heads});
  op("gated_norm", args, {a.o, a.z, w.norm, a.gated}, {rows});
  op.tile("gdn_out", args, {a.gated, w.gdn_out, a.x}, {c.hidden_size, rows});
}

void record_attention(Recorder& op, const Model& m, const AttentionLayerWeights& w, std::uint32_t layer, std::uint32_t rows) {
  auto& [c, weights, state, a, io, rope, slots] = m;
  const RowsArgs args{rows};
  const LayerArgs layer_args{rows, layer};
  const std::uint32_t query = c.num_attention_heads * c.head_dim, key = c.num_key_value_heads * c.head_dim;
  op("rms_norm", args, {a.x, w.input_norm, a.normed}, {rows});
  op.tile("attn_in", args, {a.normed, w.attn_in, a.q, a.gate, a.k, a.v}, {2 * query + 2 * key, rows});
  op.tile("attn_prep", layer_args, {io.step.buffer(), a.q, a.k, a.v, w.q_norm, w.k_norm, rope, state.page_table, state.kv},
          {c.num_attention_heads + c.num_key_value_heads, rows});
  const std::uint32_t keys = attention_keys(c, rows);
  const Range partial = a.partial.part(0, std::uint64_t{4} * rows * c.num_attention_heads * (c.head_dim + 2));
  for (std::uint32_t first = 0; first < c.max_pages * LILY_PAGE_TOKENS; first += keys)
    op("attn_prefill", AttnPrefillArgs{rows, layer, first, keys},
       {io.step.buffer(), a.q, a.gate, state.page_table, state.kv, partial, a.y},
       {c.num_key_value_heads, rows, c.num_attention_heads / c.num_key_value_heads});
  op.tile("attn_out", args, {a.y, w.attn_out, a.x}, {c.hidden_size, rows});
}

void record_moe(Recorder& op, const Model& m, const MoeWeights& w, std::uint32_t layer, std::uint32_t rows) {
  auto& [c, weights, state, a, io, rope, slots] = m;
  const RowsArgs args{rows};
  const std::uint32_t num_blocks = c.max_expert_blocks(rows);
  const Range blocks = a.blocks.part(0, num_blocks * sizeof(ExpertBlock));
  const Range experts = expert_slots(m, layer);
  op("rms_norm", args, {a.x, w.norm, a.normed}, {rows});
  op.tile("router", args, {a.normed, w.router, a.router_logits, a.shared_gate}, {c.num_experts + 1, rows});
  op.tile("shared_up", args, {a.normed, w.shared_up, a.hs}, {c.shared_expert_intermediate_size, rows});
  op("topk", args, {a.router_logits, a.topk_ids, a.topk_weights}, {rows});
  op("moe_plan", args, {a.topk_ids, a.order, blocks}, {});
  op.tile("experts_up", args, {a.normed, a.order, blocks, experts, w.experts_up, a.h, io.flags.buffer()},
          {c.moe_intermediate_size, num_blocks});
  op.tile("experts_down", args, {a.h, a.order, blocks, experts, w.experts_down, a.d}, {c.hidden_size, num_blocks});
  op.tile("shared_down", args, {a.hs, w.shared_down, a.s}, {c.hidden_size, rows});
  op("moe_combine", args, {a.d, a.topk_weights, a.s, a.shared_gate, a.x}, {rows});
}

}  // namespace

Program prefill_program(Device& device, const Model& m, std::uint32_t rows, bool wants_logits) {
  auto& [c, weights, state, a, io, rope, slots] = m;
  Program program;
  Recorder op(device, program, c.precision);
  op.tile("embed", RowsArgs{rows}, {io.chunk.buffer(), weights.embed_tokens, a.x}, {rows});
  for (const Layer& layer : layers(m)) {
    if (layer.attention)
      record_attention(op, m, *layer.attention, layer.index, rows);
    else
      record_gated_delta_net(op, m, *layer.linear, layer.index, rows);
    record_moe(op, m, layer.moe(), layer.number, rows);
    program.end_segment();
  }
  const std::uint64_t row_bytes = std::uint64_t{4} * c.hidden_size;
  if (wants_logits) {
    const Range step{io.step.buffer().get(), sizeof(StepRow), sizeof(StepRow)};
    record_head(op, m, step, a.x.part((rows - 1) * row_bytes, row_bytes), 1);
    record_sampler(op, m, step, 1);
  }
  return program;
}

}  // namespace lily
