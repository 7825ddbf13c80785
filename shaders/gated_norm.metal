// y = norm · o / sqrt(mean(o²) + eps) · silu(z), per value head. A simdgroup takes a head of a row, a threadgroup a row.
#include "lily_args.h"
#include "lily_grid.h"
#include "lily_math.h"

kernel void gated_norm(device const float* o [[buffer(0)]], device const half* z [[buffer(1)]],
                       device const float* norm [[buffer(2)]], device half* y [[buffer(3)]],
                       constant RowsArgs& args [[buffer(4)]], uint row [[threadgroup_position_in_grid]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  constexpr uint kVectors = LILY_LINEAR_VALUE_HEAD_DIM / 4;
  if (row >= args.rows) return;
  for (uint head = simdgroup; head < LILY_LINEAR_NUM_VALUE_HEADS; head += LILY_GATED_NORM_THREADS / 32) {
    const ulong begin = (ulong(row) * LILY_LINEAR_NUM_VALUE_HEADS + head) * kVectors;
    device const float4* from = (device const float4*)o + begin;
    float squares = 0.0f;
    for (uint i = lane; i < kVectors; i += 32) squares += dot(from[i], from[i]);
    const float scale = precise::rsqrt(poisoned(simd_sum(squares)) / float(LILY_LINEAR_VALUE_HEAD_DIM) + LILY_RMS_NORM_EPS);
    for (uint i = lane; i < kVectors; i += 32) {
      const float4 gate = float4(((device const half4*)z)[begin + i]);
      ((device half4*)y)[begin + i] = half4(((device const float4*)norm)[i] * from[i] * scale * gate / (1.0f + exp(-gate)));
    }
  }
}
