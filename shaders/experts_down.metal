// The second half of the chosen experts and of the shared one, onto the residual stream:
// x += sum of weight * W_e h_e + sigmoid(shared_gate) * W hs, in the order of the slots, the shared expert last.
#include "lily_gemm.h"
#include "lily_matvec.h"

#ifdef LILY_SECOND_BITS  // the step form, built for the formats of both weights

#define LILY_CHOICES LILY_NUM_EXPERTS_PER_TOK

typedef Weight<LILY_WEIGHT_BITS, LILY_WEIGHT_WIDE, LILY_MOE_INTERMEDIATE_SIZE> ExpertWeight;
typedef Weight<LILY_SECOND_BITS, LILY_SECOND_WIDE, LILY_SHARED_EXPERT_INTERMEDIATE_SIZE> SharedWeight;
typedef Layout<ExpertWeight, 1u> ExpertLayout;
typedef Layout<SharedWeight, 1u, ExpertLayout::kLanes> SharedLayout;  // a lane sums the same rows of x for both

// Weight rows per lane: a simdgroup's share of the tile.
#define LILY_DOWN_SIMDGROUPS (LILY_EXPERTS_DOWN_THREADS / LILY_SIMD_WIDTH)
constant constexpr uint kSimdgroupRows = LILY_EXPERTS_DOWN_ROWS / LILY_DOWN_SIMDGROUPS;
constant constexpr uint kCount = kSimdgroupRows > ExpertLayout::kSubrows ? kSimdgroupRows / ExpertLayout::kSubrows : 1u;

// sums += factor * this lane's part of W times the row staged at `stage`.
template <class L, class W>
static inline void add_product(W weight, uint row, threadgroup const half4* stage, uint lane, float factor,
                               thread float (&sums)[kCount]) {
  float part[kCount];
#pragma clang loop unroll(full)
  for (uint i = 0; i < kCount; ++i) part[i] = 0.0f;
#pragma clang loop unroll(full)
  for (uint i = 0; i < L::kWordsPerLane; ++i) {
    const uint word = i * L::kLanes + lane;
    Words<W, kCount> words;
    words.load(weight, row, L::kSubrows, LILY_HIDDEN_SIZE - 1u, word);
    if (word < W::kWords) multiply_word<1u>(words, stage + i * L::kLanes * L::kQuadsPerWord + lane, L::kLanes, 0u, part);
  }
#pragma clang loop unroll(full)
  for (uint i = 0; i < kCount; ++i) sums[i] += factor * part[i];
}

// Threadgroup memory: 9 KB for 8 experts of 512 and a shared one, as halves.
kernel void experts_down(device const half* h [[buffer(0)]], device const uint* topk_ids [[buffer(1)]],
                         device const float* topk_weights [[buffer(2)]], device const uint* expert_slot [[buffer(3)]],
                         device const uint4* codes [[buffer(4)]], device const WeightPair* scales [[buffer(5)]],
                         device const WeightPair* biases [[buffer(6)]], device const half* hs [[buffer(7)]],
                         device const uint4* shared_codes [[buffer(8)]], device const SecondPair* shared_scales [[buffer(9)]],
                         device const SecondPair* shared_biases [[buffer(10)]], device const float* shared_gate [[buffer(11)]],
                         device float* x [[buffer(12)]], constant RowsArgs& args [[buffer(13)]],
                         uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half4 stage[LILY_CHOICES * ExpertLayout::kRowQuads + SharedLayout::kRowQuads];
  threadgroup half4* shared_stage = stage + LILY_CHOICES * ExpertLayout::kRowQuads;
  const uint r = group.y;
  if (r >= args.rows) return;

  constexpr uint kExpertQuads = LILY_MOE_INTERMEDIATE_SIZE / 4u, kSharedQuads = LILY_SHARED_EXPERT_INTERMEDIATE_SIZE / 4u;
  device const half4* h_quads = (device const half4*)h + r * LILY_CHOICES * kExpertQuads;
  device const half4* hs_quads = (device const half4*)hs + r * kSharedQuads;
  for (uint q = index; q < LILY_CHOICES * kExpertQuads; q += LILY_EXPERTS_DOWN_THREADS)
    stage[q / kExpertQuads * ExpertLayout::kRowQuads + ExpertLayout::place(q % kExpertQuads)] = h_quads[q];
  for (uint q = index; q < kSharedQuads; q += LILY_EXPERTS_DOWN_THREADS) shared_stage[SharedLayout::place(q)] = hs_quads[q];
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const ExpertWeight weight = {codes, scales, biases};
  const SharedWeight shared = {shared_codes, shared_scales, shared_biases};
  const uint of_row = lane % ExpertLayout::kLanes, subrow = lane / ExpertLayout::kLanes;
  const uint begin = group.x * LILY_EXPERTS_DOWN_ROWS, end = min(begin + LILY_EXPERTS_DOWN_ROWS, LILY_HIDDEN_SIZE);
  for (uint from = begin; from < end; from += LILY_DOWN_SIMDGROUPS * kCount * ExpertLayout::kSubrows) {
    const uint row = from + simdgroup * kCount * ExpertLayout::kSubrows + subrow;
    float sums[kCount];
#pragma clang loop unroll(full)
    for (uint i = 0; i < kCount; ++i) sums[i] = 0.0f;
#pragma clang loop unroll_count(2)
    for (uint i = 0; i < LILY_CHOICES; ++i) {
      const uint slot = expert_slot[topk_ids[r * LILY_CHOICES + i]];
      if (slot == LILY_NO_EXPERT) continue;  // experts_up has set the abort flag
      add_product<ExpertLayout>(weight.from_row((ulong)slot * LILY_HIDDEN_SIZE), row, stage + i * ExpertLayout::kRowQuads, of_row,
                                topk_weights[r * LILY_CHOICES + i], sums);
    }
    add_product<SharedLayout>(shared, row, shared_stage, of_row, sigmoid(shared_gate[r]), sums);
#pragma clang loop unroll(full)
    for (uint i = 0; i < kCount; ++i) {
      const float total = lanes_sum<ExpertLayout::kLanes>(sums[i]);
      const uint at = row + i * ExpertLayout::kSubrows;
      if (of_row == 0u && at < end) x[r * LILY_HIDDEN_SIZE + at] += total;
    }
  }
}

#endif

// Results go back from the experts' order to that of the assignments.
struct ByAssignment {
  device float* d;
  device const uint* order;

  void operator()(uint column, uint row, float value) const { d[ulong(order[row]) * LILY_HIDDEN_SIZE + column] = value; }
};

kernel void experts_down_tile(device const half* h [[buffer(0)]], device const uint* order [[buffer(1)]],
                              device const ExpertBlock* blocks [[buffer(2)]], device const uint* expert_slot [[buffer(3)]],
                              device const uint4* codes [[buffer(4)]], device const WeightPair* scales [[buffer(5)]],
                              device const WeightPair* biases [[buffer(6)]], device float* d [[buffer(7)]],
                              constant RowsArgs& args [[buffer(8)]], uint2 group [[threadgroup_position_in_grid]],
                              uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                              uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float memory[gemm_memory<half, LILY_EXPERT_BLOCK>()];
  constexpr uint kDepth = LILY_MOE_INTERMEDIATE_SIZE;
  const GemmBlock block = gemm_block(blocks, expert_slot, group.y, LILY_HIDDEN_SIZE);
  if (block.is_empty || block.is_missing) return;  // experts_up has set the abort flag
  const uint column0 = group.x * LILY_GEMM_COLUMNS;
  const uint column = min(column0 + index / (LILY_GEMM_THREADS / LILY_GEMM_COLUMNS), LILY_HIDDEN_SIZE - 1);
  const ByAssignment store = {d, order};
  const GemmColumns<ByAssignment> output = {store, block.begin, block.end, column0, LILY_HIDDEN_SIZE};
  const Thread self = {index, simdgroup, lane};
  gemm<half, LILY_EXPERT_BLOCK>(kDepth, h + ulong(gemm_block_row(block, index)) * kDepth,
                                gemm_row({codes, scales, biases}, block.expert_row + column, kDepth), memory, output, self);
}
