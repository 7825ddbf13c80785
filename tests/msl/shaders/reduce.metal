// Sums of rows: lanes, then simdgroups through threadgroup memory, then everybody reads the total.
#include <metal_stdlib>
using namespace metal;

constant constexpr uint MAX_SIMDGROUPS = 32;

kernel void row_sum(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant uint& columns [[buffer(2)]],
                    uint row [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
                    uint threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                    uint simdgroup [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[MAX_SIMDGROUPS];
  device const float* from = x + ulong(row) * columns;
  float sum = 0.0f;
  for (uint i = tid; i < columns; i += threads) sum += from[i];
  sum = simd_sum(sum);
  if (lane == 0) partial[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const float total = simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
  for (uint i = tid; i < columns; i += threads) y[ulong(row) * columns + i] = from[i] / total;
}
