// The step program: every kernel of one decoded token, in the order of docs/design/model.md section 3.
#include <algorithm>

#include "model/programs.h"
#include "model/recorder.h"

namespace lily {
namespace {

void record_gated_delta_net(Recorder& op, const Model& m, const LinearLayerWeights& w, std::uint32_t layer, std::uint32_t rows) {
  auto& [c, weights, state, a, io, rope, slots] = m;
  const RowsArgs args{rows};
  const std::uint32_t in_rows = c.conv_channels() + c.value_dim() + 2 * c.linear_num_value_heads;
  op("gdn_in", args, {a.x, w.input_norm, w.gdn_in, a.qkv, a.z, a.ba}, {in_rows, rows});
  op("gdn_step", LayerArgs{rows, layer},
     {io.step.buffer(), a.qkv, a.ba, w.conv1d, w.A_log, w.dt_bias, state.conv_state, state.recurrent_state, a.o},
     {c.linear_value_head_dim, c.linear_num_value_heads});
  op("gdn_out", args, {a.o, a.z, w.norm, w.gdn_out, a.x}, {c.hidden_size, rows});
}

void record_attention(Recorder& op, const Model& m, const AttentionLayerWeights& w, std::uint32_t layer, std::uint32_t rows,
                      std::uint32_t bucket) {
  auto& [c, weights, state, a, io, rope, slots] = m;
  const RowsArgs args{rows};
  const std::uint32_t query = c.num_attention_heads * c.head_dim, key = c.num_key_value_heads * c.head_dim;
  const std::uint32_t splits = bucket / keys_per_split(c.traits, bucket);
  op("attn_in", args, {a.x, w.input_norm, w.attn_in, a.q, a.gate, a.k, a.v}, {2 * query + 2 * key, rows});
  op("attn_prep", LayerArgs{rows, layer}, {io.step.buffer(), a.q, a.k, a.v, w.q_norm, w.k_norm, rope, state.page_table, state.kv},
     {c.num_attention_heads + c.num_key_value_heads, rows});
  op("attn_split", AttnSplitArgs{rows, layer, splits},
     {io.step.buffer(), a.q, state.page_table, state.kv, a.partial}, {c.num_key_value_heads, splits, rows});
  op("attn_combine", AttnCombineArgs{rows, splits}, {a.partial, a.gate, a.y}, {c.num_attention_heads, rows});
  op("attn_out", args, {a.y, w.attn_out, a.x}, {c.hidden_size, rows});
}

void record_moe(Recorder& op, const Model& m, const MoeWeights& w, std::uint32_t layer, std::uint32_t rows) {
  auto& [c, weights, state, a, io, rope, slots] = m;
  const RowsArgs args{rows};
  op("router", args, {a.x, w.norm, w.router, a.router_logits, a.shared_gate}, {c.num_experts + 1, rows});
  op("shared_up", args, {a.x, w.norm, w.shared_up, a.hs}, {c.shared_expert_intermediate_size, rows});
  op("experts_up", args,
     {a.x, w.norm, a.router_logits, expert_slots(m, layer), w.experts_up, a.h, a.topk_ids, a.topk_weights, io.flags.buffer()},
     {c.moe_intermediate_size, c.num_experts_per_tok, rows});
  op("experts_down", args,
     {a.h, a.topk_ids, a.topk_weights, expert_slots(m, layer), w.experts_down, a.hs, w.shared_down, a.shared_gate, a.x},
     {c.hidden_size, rows});
}

}  // namespace

std::uint32_t step_bucket(std::uint64_t context) {
  std::uint64_t bucket = LILY_PAGE_TOKENS;
  while (bucket < context) bucket *= 2;
  return static_cast<std::uint32_t>(bucket);
}

std::uint32_t keys_per_split(const DeviceTraits& traits, std::uint64_t context) {
  const std::uint32_t bucket = step_bucket(context);
  return std::max(std::min(traits.keys_per_split, bucket / kFewestSplits), bucket / kMaxSplits);
}

Program decode_program(Device& device, const Model& m, std::uint32_t rows, std::uint32_t bucket, bool masks_follow) {
  auto& [c, weights, state, a, io, rope, slots] = m;
  Program program;
  Recorder op(device, program, c.precision);
  op("embed", RowsArgs{rows}, {io.step.buffer(), io.tokens.buffer(), weights.embed_tokens, a.x}, {rows});
  for (const Layer& layer : layers(m)) {
    if (layer.attention)
      record_attention(op, m, *layer.attention, layer.index, rows, bucket);
    else
      record_gated_delta_net(op, m, *layer.linear, layer.index, rows);
    record_moe(op, m, layer.moe(), layer.number, rows);
  }
  const Range step{io.step.buffer().get(), 0, rows * sizeof(StepRow)};
  record_head(op, m, step, a.x, rows);
  if (masks_follow) program.end_segment();
  record_sampler(op, m, step, rows);
  return program;
}

}  // namespace lily
