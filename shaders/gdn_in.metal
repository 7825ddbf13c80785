// qkv | z | b, a = W norm(x): all input projections of a Gated DeltaNet layer.
#include "lily_gemm.h"
#include "lily_matvec.h"
#include "lily_operands.h"

struct Projections {
  device half* qkv;  // [R, C]
  device half* z;    // [R, Hv dv]
  device float* ba;  // [R, 2 Hv]

  void operator()(uint row, uint r, float value) const thread {
    if (row < LILY_CONV_CHANNELS) {
      qkv[r * LILY_CONV_CHANNELS + row] = half(value);
    } else if (row < LILY_CONV_CHANNELS + LILY_VALUE_DIM) {
      z[r * LILY_VALUE_DIM + row - LILY_CONV_CHANNELS] = half(value);
    } else {
      ba[r * 2u * LILY_LINEAR_NUM_VALUE_HEADS + row - LILY_CONV_CHANNELS - LILY_VALUE_DIM] = value;
    }
  }
};

kernel void gdn_in(device const float* x [[buffer(0)]], device const float* gain [[buffer(1)]],
                   device const uint4* codes [[buffer(2)]], device const WeightPair* scales [[buffer(3)]],
                   device const WeightPair* biases [[buffer(4)]], device half* qkv [[buffer(5)]], device half* z [[buffer(6)]],
                   device float* ba [[buffer(7)]], constant RowsArgs& args [[buffer(8)]],
                   uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half4 stage[LILY_STAGE_QUADS];
  threadgroup float parts[LILY_NORM_PARTS];
  const Thread self = {index, simdgroup, lane};
  const NormedRows operand = normed_rows(x, gain, parts, LILY_ALL_ROWS);
  const Projections store = {qkv, z, ba};
  constexpr uint kRows = LILY_CONV_CHANNELS + LILY_VALUE_DIM + 2u * LILY_LINEAR_NUM_VALUE_HEADS;
  const uint begin = group.x * LILY_GDN_IN_ROWS;
  const Weight<LILY_WEIGHT_BITS, LILY_WEIGHT_WIDE, LILY_HIDDEN_SIZE> weight = {codes, scales, biases};
  matvec<4u>(weight, begin, min(begin + LILY_GDN_IN_ROWS, kRows), stage).run(operand, args.rows, store, self);
}

kernel void gdn_in_tile(device const half* y [[buffer(0)]], device const uint4* codes [[buffer(1)]],
                        device const WeightPair* scales [[buffer(2)]], device const WeightPair* biases [[buffer(3)]],
                        device half* qkv [[buffer(4)]], device half* z [[buffer(5)]], device float* ba [[buffer(6)]],
                        constant RowsArgs& args [[buffer(7)]], uint2 group [[threadgroup_position_in_grid]],
                        uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float memory[gemm_memory<half, LILY_GEMM_ROWS>()];
  const GemmWeight w = {codes, scales, biases};
  const Projections store = {qkv, z, ba};
  const Thread self = {index, simdgroup, lane};
  constexpr uint kRows = LILY_CONV_CHANNELS + LILY_VALUE_DIM + 2u * LILY_LINEAR_NUM_VALUE_HEADS;
  gemm_dense<half>(LILY_HIDDEN_SIZE, y, args.rows, w, kRows, store, group, memory, self);
}
