// Every operation over a simdgroup, one row of the output each.
#include <metal_stdlib>
using namespace metal;

kernel void operations(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], device uint* bits [[buffer(2)]],
                       uint tid [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                       ushort lane [[thread_index_in_simdgroup]]) {
  const float v = x[tid];
  float out[16];
  out[0] = simd_sum(v);
  out[1] = simd_max(v);
  out[2] = simd_min(v);
  out[3] = simd_prefix_inclusive_sum(v);
  out[4] = simd_prefix_exclusive_sum(v);
  out[5] = simd_shuffle(v, ushort((lane * 5 + 3) % 32));
  out[6] = simd_shuffle_xor(v, 9);
  out[7] = simd_shuffle_down(v, 3);
  out[8] = simd_shuffle_up(v, 3);
  out[9] = simd_broadcast(v, 17);
  out[10] = simd_broadcast_first(v);
  out[11] = simd_any(v > 2.0f) ? 1.0f : 0.0f;
  out[12] = simd_all(v > -9.0f) ? 1.0f : 0.0f;
  out[13] = simd_shuffle_rotate_down(v, 30);
  out[14] = simd_product(v > 0.0f ? 1.0f : 0.5f);
  out[15] = float(simd_sum(int(tid)));
  for (uint i = 0; i < 16; ++i) y[i * threads + tid] = out[i];
  bits[tid] = uint(ulong(simd_ballot(v > 0.0f)));
  bits[threads + tid] = simd_or(1u << (tid % 7)) ^ simd_and(tid | 64u);
}
