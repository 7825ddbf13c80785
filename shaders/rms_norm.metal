// y = gain · x / sqrt(mean(x²) + eps). A simdgroup takes a row; its second read of the row comes from the cache.
#include "lily_args.h"
#include "lily_grid.h"
#include "lily_math.h"

kernel void rms_norm(device const float* x [[buffer(0)]], device const float* gain [[buffer(1)]], device half* y [[buffer(2)]],
                     constant RowsArgs& args [[buffer(3)]], uint group [[threadgroup_position_in_grid]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const uint row = group * LILY_RMS_NORM_ROWS + simdgroup;
  if (row >= args.rows) return;
  device const float4* from = (device const float4*)(x + ulong(row) * LILY_HIDDEN_SIZE);
  device half4* to = (device half4*)(y + ulong(row) * LILY_HIDDEN_SIZE);
  float squares = 0.0f;
  for (uint i = lane; i < LILY_HIDDEN_SIZE / 4; i += 32) squares += dot(from[i], from[i]);
  const float scale = precise::rsqrt(poisoned(simd_sum(squares)) / float(LILY_HIDDEN_SIZE) + LILY_RMS_NORM_EPS);
  for (uint i = lane; i < LILY_HIDDEN_SIZE / 4; i += 32) to[i] = half4(from[i] * scale * ((device const float4*)gain)[i]);
}
