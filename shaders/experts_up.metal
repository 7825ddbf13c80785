// h = silu(W_gate norm(x)) * (W_up norm(x)) for the k experts that the router chose for each row.
#include "lily_gemm.h"
#include "lily_matvec.h"
#include "lily_operands.h"
#include "lily_topk.h"

typedef Weight<LILY_WEIGHT_BITS, LILY_WEIGHT_WIDE, LILY_HIDDEN_SIZE> ExpertWeight;

// One expert's activation of one row.
struct Hidden {
  device half* h;  // [I]

  void operator()(uint row, uint, float value) const thread { h[row] = half(value); }
};

kernel void experts_up(device const float* x [[buffer(0)]], device const float* gain [[buffer(1)]],
                       device const float* router_logits [[buffer(2)]], device const uint* expert_slot [[buffer(3)]],
                       device const uint4* gate_codes [[buffer(4)]], device const WeightPair* gate_scales [[buffer(5)]],
                       device const WeightPair* gate_biases [[buffer(6)]], device const uint4* up_codes [[buffer(7)]],
                       device const WeightPair* up_scales [[buffer(8)]], device const WeightPair* up_biases [[buffer(9)]],
                       device half* h [[buffer(10)]], device uint* topk_ids [[buffer(11)]],
                       device float* topk_weights [[buffer(12)]], device atomic_uint* flags [[buffer(13)]],
                       constant RowsArgs& args [[buffer(14)]], uint3 group [[threadgroup_position_in_grid]],
                       uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half4 stage[LILY_STAGE_QUADS];
  threadgroup float parts[LILY_NORM_PARTS];
  threadgroup uint slots[1];
  const Thread self = {index, simdgroup, lane};
  const uint choice = group.y, row = group.z, assignment = row * LILY_NUM_EXPERTS_PER_TOK + choice;
  if (row >= args.rows) return;

  // Each threadgroup finds its own expert; one per assignment goes on to the last choice and writes id and weight.
  if (simdgroup == 0u) {
    Router router;
    router.load(router_logits + row * LILY_NUM_EXPERTS, lane);
    Chosen mine = router.take(lane);
    const float largest = mine.logit;
    float total = 1.0f;
    for (uint i = 1; i < (group.x == 0u ? LILY_NUM_EXPERTS_PER_TOK : choice + 1u); ++i) {
      const Chosen next = router.take(lane);
      total += exp(next.logit - largest);
      if (i == choice) mine = next;
    }
    if (lane == 0u) {
      slots[0] = expert_slot[mine.id];
      if (group.x == 0u) {
        topk_ids[assignment] = mine.id;
        topk_weights[assignment] = exp(mine.logit - largest) / total;
        if (slots[0] == LILY_NO_EXPERT) atomic_store_explicit(&flags[0], 1u, memory_order_relaxed);
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint slot = slots[0];
  if (slot == LILY_NO_EXPERT) return;

  const NormedRows operand = normed_rows(x, gain, parts, row);
  const Hidden store = {h + assignment * LILY_MOE_INTERMEDIATE_SIZE};
  const uint begin = group.x * LILY_EXPERTS_UP_ROWS;
  const ExpertWeight gate = {gate_codes, gate_scales, gate_biases}, up = {up_codes, up_scales, up_biases};
  const ulong first = (ulong)slot * LILY_MOE_INTERMEDIATE_SIZE;
  const uint end = min(begin + LILY_EXPERTS_UP_ROWS, LILY_MOE_INTERMEDIATE_SIZE);
  matvec_gate_up<2u>(gate.from_row(first), up.from_row(first), begin, end, stage).run_padded<1u>(operand, 1u, store, self);
}

// The activations of a chunk, in the experts' order.
struct ChunkHidden {
  device half* h;  // [m k, I]

  void operator()(uint row, uint r, float value) const thread { h[(ulong)r * LILY_MOE_INTERMEDIATE_SIZE + row] = half(value); }
};

kernel void experts_up_tile(device const half* y [[buffer(0)]], device const uint* order [[buffer(1)]],
                            device const ExpertBlock* blocks [[buffer(2)]], device const uint* expert_slot [[buffer(3)]],
                            device const uint4* gate_codes [[buffer(4)]], device const WeightPair* gate_scales [[buffer(5)]],
                            device const WeightPair* gate_biases [[buffer(6)]], device const uint4* up_codes [[buffer(7)]],
                            device const WeightPair* up_scales [[buffer(8)]], device const WeightPair* up_biases [[buffer(9)]],
                            device half* h [[buffer(10)]], device atomic_uint* flags [[buffer(11)]],
                            constant RowsArgs& args [[buffer(12)]], uint2 group [[threadgroup_position_in_grid]],
                            uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float memory[gemm_memory<half, LILY_EXPERT_BLOCK>()];
  constexpr uint kDepth = LILY_HIDDEN_SIZE, kWidth = LILY_MOE_INTERMEDIATE_SIZE;
  const GemmBlock block = gemm_block(blocks, expert_slot, group.y, kWidth);
  if (block.is_missing && index == 0) atomic_store_explicit(&flags[0], 1u, memory_order_relaxed);
  if (block.is_empty || block.is_missing) return;
  const GemmWeight gate = gemm_row({gate_codes, gate_scales, gate_biases}, block.expert_row, kDepth);
  const GemmWeight up = gemm_row({up_codes, up_scales, up_biases}, block.expert_row, kDepth);
  const uint column0 = group.x * LILY_GEMM_GATE_UP_COLUMNS;
  const ulong row = order[gemm_block_row(block, index)] / LILY_NUM_EXPERTS_PER_TOK;
  const ChunkHidden store = {h};
  const GemmGateUp<ChunkHidden> output = {store, block.begin, block.end, column0, kWidth};
  const Thread self = {index, simdgroup, lane};
  gemm<half, LILY_EXPERT_BLOCK>(kDepth, y + row * kDepth, gemm_gate_up_row(gate, up, column0, kWidth, kDepth, index), memory,
                                output, self);
}
