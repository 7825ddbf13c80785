// x += W y: the output projection of an attention layer, onto the residual stream.
#include "lily_gemm.h"
#include "lily_matvec.h"
#include "lily_operands.h"

#define LILY_QUERY_DIM (LILY_NUM_ATTENTION_HEADS * LILY_HEAD_DIM)

struct Residual {
  device float* x;  // [R, H]

  void operator()(uint row, uint r, float value) const thread { x[r * LILY_HIDDEN_SIZE + row] += value; }
};

kernel void attn_out(device const half* y [[buffer(0)]], device const uint4* codes [[buffer(1)]],
                     device const WeightPair* scales [[buffer(2)]], device const WeightPair* biases [[buffer(3)]],
                     device float* x [[buffer(4)]], constant RowsArgs& args [[buffer(5)]],
                     uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half4 stage[LILY_STAGE_QUADS];
  const Thread self = {index, simdgroup, lane};
  const HalfRows<LILY_QUERY_DIM> operand = {y};
  const Residual store = {x};
  const uint begin = group.x * LILY_ATTN_OUT_ROWS;
  const Weight<LILY_WEIGHT_BITS, LILY_WEIGHT_WIDE, LILY_QUERY_DIM> weight = {codes, scales, biases};
  matvec<2u>(weight, begin, min(begin + LILY_ATTN_OUT_ROWS, LILY_HIDDEN_SIZE), stage).run(operand, args.rows, store, self);
}

kernel void attn_out_tile(device const half* y [[buffer(0)]], device const uint4* codes [[buffer(1)]],
                          device const WeightPair* scales [[buffer(2)]], device const WeightPair* biases [[buffer(3)]],
                          device float* x [[buffer(4)]], constant RowsArgs& args [[buffer(5)]],
                          uint2 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                          uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float memory[gemm_memory<half, LILY_GEMM_ROWS>()];
  const GemmWeight w = {codes, scales, biases};
  const Residual store = {x};
  const Thread self = {index, simdgroup, lane};
  gemm_dense<half>(LILY_QUERY_DIM, y, args.rows, w, LILY_HIDDEN_SIZE, store, group, memory, self);
}
