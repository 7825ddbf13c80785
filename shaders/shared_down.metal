// s = W hs: the second half of the shared expert for a chunk. A step has it in experts_down.
#include "lily_gemm.h"

struct Output {
  device float* s;  // [m, H]

  void operator()(uint row, uint r, float value) const { s[r * LILY_HIDDEN_SIZE + row] = value; }
};

kernel void shared_down_tile(device const half* hs [[buffer(0)]], device const uint4* codes [[buffer(1)]],
                             device const WeightPair* scales [[buffer(2)]], device const WeightPair* biases [[buffer(3)]],
                             device float* s [[buffer(4)]], constant RowsArgs& args [[buffer(5)]],
                             uint2 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                             uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float memory[gemm_memory<half, LILY_GEMM_ROWS>()];
  const GemmWeight w = {codes, scales, biases};
  const Output store = {s};
  const Thread self = {index, simdgroup, lane};
  gemm_dense<half>(LILY_SHARED_EXPERT_INTERMEDIATE_SIZE, hs, args.rows, w, LILY_HIDDEN_SIZE, store, group, memory, self);
}
