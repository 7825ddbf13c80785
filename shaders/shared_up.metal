// hs = silu(W_gate norm(x)) * (W_up norm(x)): the first half of the shared expert.
#include "lily_gemm.h"
#include "lily_matvec.h"
#include "lily_operands.h"

struct Hidden {
  device half* hs;  // [R, Is]

  void operator()(uint row, uint r, float value) const thread {
    hs[r * LILY_SHARED_EXPERT_INTERMEDIATE_SIZE + row] = half(value);
  }
};

kernel void shared_up(device const float* x [[buffer(0)]], device const float* gain [[buffer(1)]],
                      device const uint4* gate_codes [[buffer(2)]], device const WeightPair* gate_scales [[buffer(3)]],
                      device const WeightPair* gate_biases [[buffer(4)]], device const uint4* up_codes [[buffer(5)]],
                      device const WeightPair* up_scales [[buffer(6)]], device const WeightPair* up_biases [[buffer(7)]],
                      device half* hs [[buffer(8)]], constant RowsArgs& args [[buffer(9)]],
                      uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half4 stage[LILY_STAGE_QUADS];
  threadgroup float parts[LILY_NORM_PARTS];
  const Thread self = {index, simdgroup, lane};
  const NormedRows operand = normed_rows(x, gain, parts, LILY_ALL_ROWS);
  const Hidden store = {hs};
  const uint begin = group.x * LILY_SHARED_UP_ROWS;
  const Weight<LILY_WEIGHT_BITS, LILY_WEIGHT_WIDE, LILY_HIDDEN_SIZE> gate = {gate_codes, gate_scales, gate_biases};
  const Weight<LILY_WEIGHT_BITS, LILY_WEIGHT_WIDE, LILY_HIDDEN_SIZE> up = {up_codes, up_scales, up_biases};
  const uint end = min(begin + LILY_SHARED_UP_ROWS, LILY_SHARED_EXPERT_INTERMEDIATE_SIZE);
  matvec_gate_up<1u>(gate, up, begin, end, stage).run(operand, args.rows, store, self);
}

kernel void shared_up_tile(device const half* y [[buffer(0)]], device const uint4* gate_codes [[buffer(1)]],
                           device const WeightPair* gate_scales [[buffer(2)]], device const WeightPair* gate_biases [[buffer(3)]],
                           device const uint4* up_codes [[buffer(4)]], device const WeightPair* up_scales [[buffer(5)]],
                           device const WeightPair* up_biases [[buffer(6)]], device half* hs [[buffer(7)]], constant RowsArgs& args [[buffer(8)]],
                           uint2 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                           uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float memory[gemm_memory<half, LILY_GEMM_ROWS>()];
  constexpr uint kDepth = LILY_HIDDEN_SIZE, kWidth = LILY_SHARED_EXPERT_INTERMEDIATE_SIZE;
  const GemmWeight gate = {gate_codes, gate_scales, gate_biases}, up = {up_codes, up_scales, up_biases};
  const uint row0 = group.y * LILY_GEMM_ROWS, column0 = group.x * LILY_GEMM_GATE_UP_COLUMNS;
  const uint row = min(row0 + index / (LILY_GEMM_THREADS / LILY_GEMM_ROWS), args.rows - 1);
  const Hidden store = {hs};
  const GemmGateUp<Hidden> output = {store, row0, args.rows, column0, kWidth};
  const Thread self = {index, simdgroup, lane};
  gemm<half, LILY_GEMM_ROWS>(kDepth, y + ulong(row) * kDepth, gemm_gate_up_row(gate, up, column0, kWidth, kDepth, index), memory,
                             output, self);
}
