// router_logits | shared_gate = W norm(x): a logit per expert and the logit of the shared expert's gate.
#include "lily_gemm.h"
#include "lily_matvec.h"
#include "lily_operands.h"

struct Logits {
  device float* router_logits;  // [R, E]
  device float* shared_gate;    // [R]

  void operator()(uint row, uint r, float value) const thread {
    if (row < LILY_NUM_EXPERTS) {
      router_logits[r * LILY_NUM_EXPERTS + row] = value;
    } else {
      shared_gate[r] = value;
    }
  }
};

kernel void router(device const float* x [[buffer(0)]], device const float* gain [[buffer(1)]],
                   device const uint4* codes [[buffer(2)]], device const WeightPair* scales [[buffer(3)]],
                   device const WeightPair* biases [[buffer(4)]], device float* router_logits [[buffer(5)]],
                   device float* shared_gate [[buffer(6)]], constant RowsArgs& args [[buffer(7)]],
                   uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half4 stage[LILY_STAGE_QUADS];
  threadgroup float parts[LILY_NORM_PARTS];
  const Thread self = {index, simdgroup, lane};
  const NormedRows operand = normed_rows(x, gain, parts, LILY_ALL_ROWS);
  const Logits store = {router_logits, shared_gate};
  const uint begin = group.x * LILY_ROUTER_ROWS;
  const Weight<LILY_WEIGHT_BITS, LILY_WEIGHT_WIDE, LILY_HIDDEN_SIZE> weight = {codes, scales, biases};
  matvec<1u>(weight, begin, min(begin + LILY_ROUTER_ROWS, LILY_NUM_EXPERTS + 1u), stage).run(operand, args.rows, store, self);
}

kernel void router_tile(device const half* y [[buffer(0)]], device const uint4* codes [[buffer(1)]],
                        device const WeightPair* scales [[buffer(2)]], device const WeightPair* biases [[buffer(3)]],
                        device float* router_logits [[buffer(4)]], device float* shared_gate [[buffer(5)]],
                        constant RowsArgs& args [[buffer(6)]], uint2 group [[threadgroup_position_in_grid]],
                        uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float memory[gemm_memory<float, LILY_GEMM_ROWS>()];
  const GemmWeight w = {codes, scales, biases};
  const Logits store = {router_logits, shared_gate};
  const Thread self = {index, simdgroup, lane};
  gemm_dense<float>(LILY_HIDDEN_SIZE, y, args.rows, w, LILY_NUM_EXPERTS + 1, store, group, memory, self);
}
