// x += W (norm * o / rms(o) * silu(z)): the gated norm and the output projection of a Gated DeltaNet layer.
#include "lily_gemm.h"
#include "lily_matvec.h"
#include "lily_operands.h"

// The gated norm of o, a norm over each head's values. The heads' scales come first: measure(), a simdgroup per head.
struct GatedRows {
  struct Row {
    device const float4* o;
    device const half4* z;
    device const float4* norm;
    threadgroup const float* scales;

    float4 quad(uint at) const thread {
      const float4 gate = float4(z[at]);
      const float4 gated = float4(silu(gate.x), silu(gate.y), silu(gate.z), silu(gate.w));
      return o[at] * scales[4u * at / LILY_LINEAR_VALUE_HEAD_DIM] * norm[at % (LILY_LINEAR_VALUE_HEAD_DIM / 4u)] * gated;
    }
  };

  device const float* o;      // [R, Hv, dv]
  device const half* z;       // [R, Hv, dv]
  device const float* norm;   // [dv]
  threadgroup float* scales;  // [R, Hv]

  void measure(uint rows, Thread self) const thread {
    for (uint head = self.simdgroup; head < rows * LILY_LINEAR_NUM_VALUE_HEADS; head += LILY_MATVEC_SIMDGROUPS) {
      device const float4* values = (device const float4*)(o + head * LILY_LINEAR_VALUE_HEAD_DIM);
      float sum = 0.0f;
      for (uint q = self.lane; q < LILY_LINEAR_VALUE_HEAD_DIM / 4u; q += LILY_SIMD_WIDTH) sum += dot(values[q], values[q]);
      sum = simd_sum(sum);
      if (self.lane == 0u) scales[head] = rsqrt(poisoned(sum) / float(LILY_LINEAR_VALUE_HEAD_DIM) + LILY_RMS_NORM_EPS);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  Row row(uint r) const thread {
    Row result;
    result.o = (device const float4*)(o + r * LILY_VALUE_DIM);
    result.z = (device const half4*)(z + r * LILY_VALUE_DIM);
    result.norm = (device const float4*)norm;
    result.scales = scales + r * LILY_LINEAR_NUM_VALUE_HEADS;
    return result;
  }
};

struct Residual {
  device float* x;  // [R, H]

  void operator()(uint row, uint r, float value) const thread { x[r * LILY_HIDDEN_SIZE + row] += value; }
};

kernel void gdn_out(device const float* o [[buffer(0)]], device const half* z [[buffer(1)]],
                    device const float* norm [[buffer(2)]], device const uint4* codes [[buffer(3)]],
                    device const WeightPair* scales [[buffer(4)]], device const WeightPair* biases [[buffer(5)]],
                    device float* x [[buffer(6)]], constant RowsArgs& args [[buffer(7)]],
                    uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half4 stage[LILY_STAGE_QUADS];
  threadgroup float head_scales[LILY_MAX_STEP_ROWS * LILY_LINEAR_NUM_VALUE_HEADS];
  const Thread self = {index, simdgroup, lane};
  const GatedRows operand = {o, z, norm, head_scales};
  const Residual store = {x};
  const uint begin = group.x * LILY_GDN_OUT_ROWS;
  const Weight<LILY_WEIGHT_BITS, LILY_WEIGHT_WIDE, LILY_VALUE_DIM> weight = {codes, scales, biases};
  matvec<2u>(weight, begin, min(begin + LILY_GDN_OUT_ROWS, LILY_HIDDEN_SIZE), stage).run(operand, args.rows, store, self);
}

kernel void gdn_out_tile(device const half* y [[buffer(0)]], device const uint4* codes [[buffer(1)]],
                         device const WeightPair* scales [[buffer(2)]], device const WeightPair* biases [[buffer(3)]],
                         device float* x [[buffer(4)]], constant RowsArgs& args [[buffer(5)]],
                         uint2 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                         uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float memory[gemm_memory<half, LILY_GEMM_ROWS>()];
  const GemmWeight w = {codes, scales, biases};
  const Residual store = {x};
  const Thread self = {index, simdgroup, lane};
  gemm_dense<half>(LILY_VALUE_DIM, y, args.rows, w, LILY_HIDDEN_SIZE, store, group, memory, self);
}
