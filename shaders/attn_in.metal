// q | gate | k | v = W norm(x): all input projections of an attention layer.
#include "lily_gemm.h"
#include "lily_matvec.h"
#include "lily_operands.h"

#define LILY_QUERY_DIM (LILY_NUM_ATTENTION_HEADS * LILY_HEAD_DIM)
#define LILY_KEY_VALUE_DIM (LILY_NUM_KEY_VALUE_HEADS * LILY_HEAD_DIM)

struct Projections {
  device half* q;     // [R, Hq D]
  device half* gate;  // [R, Hq D]
  device half* k;     // [R, Hkv D]
  device half* v;     // [R, Hkv D]

  void operator()(uint row, uint r, float value) const thread {
    if (row < LILY_QUERY_DIM) {
      q[r * LILY_QUERY_DIM + row] = half(value);
    } else if (row < 2u * LILY_QUERY_DIM) {
      gate[r * LILY_QUERY_DIM + row - LILY_QUERY_DIM] = poisoned_half(value);  // its sigmoid would hide infinity
    } else if (row < 2u * LILY_QUERY_DIM + LILY_KEY_VALUE_DIM) {
      k[r * LILY_KEY_VALUE_DIM + row - 2u * LILY_QUERY_DIM] = half(value);
    } else {
      v[r * LILY_KEY_VALUE_DIM + row - 2u * LILY_QUERY_DIM - LILY_KEY_VALUE_DIM] = half(value);
    }
  }
};

kernel void attn_in(device const float* x [[buffer(0)]], device const float* gain [[buffer(1)]],
                    device const uint4* codes [[buffer(2)]], device const WeightPair* scales [[buffer(3)]],
                    device const WeightPair* biases [[buffer(4)]], device half* q [[buffer(5)]], device half* gate [[buffer(6)]],
                    device half* k [[buffer(7)]], device half* v [[buffer(8)]], constant RowsArgs& args [[buffer(9)]],
                    uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half4 stage[LILY_STAGE_QUADS];
  threadgroup float parts[LILY_NORM_PARTS];
  const Thread self = {index, simdgroup, lane};
  const NormedRows operand = normed_rows(x, gain, parts, LILY_ALL_ROWS);
  const Projections store = {q, gate, k, v};
  constexpr uint kRows = 2u * (LILY_QUERY_DIM + LILY_KEY_VALUE_DIM);
  const uint begin = group.x * LILY_ATTN_IN_ROWS;
  const Weight<LILY_WEIGHT_BITS, LILY_WEIGHT_WIDE, LILY_HIDDEN_SIZE> weight = {codes, scales, biases};
  matvec<4u>(weight, begin, min(begin + LILY_ATTN_IN_ROWS, kRows), stage).run(operand, args.rows, store, self);
}

kernel void attn_in_tile(device const half* y [[buffer(0)]], device const uint4* codes [[buffer(1)]],
                         device const WeightPair* scales [[buffer(2)]], device const WeightPair* biases [[buffer(3)]],
                         device half* q [[buffer(4)]], device half* gate [[buffer(5)]], device half* k [[buffer(6)]],
                         device half* v [[buffer(7)]], constant RowsArgs& args [[buffer(8)]],
                         uint2 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float memory[gemm_memory<half, LILY_GEMM_ROWS>()];
  const GemmWeight w = {codes, scales, biases};
  const Projections store = {q, gate, k, v};
  const Thread self = {index, simdgroup, lane};
  gemm_dense<half>(LILY_HIDDEN_SIZE, y, args.rows, w, 2 * (LILY_QUERY_DIM + LILY_KEY_VALUE_DIM), store, group, memory, self);
}
