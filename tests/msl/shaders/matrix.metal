// c[m, n] = a[m, k] b[n, k]ᵀ with 8x8 matrices, one threadgroup of four simdgroups per tile of 16x16.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

#ifndef OPERAND
#define OPERAND bfloat
#endif
constant constexpr uint DEPTH = 32;

kernel void matrix(device const OPERAND* a [[buffer(0)]], device const OPERAND* b [[buffer(1)]], device float* c [[buffer(2)]],
                   constant uint3& size [[buffer(3)]], uint2 group [[threadgroup_position_in_grid]],
                   uint tid [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup OPERAND left[16 * DEPTH];
  threadgroup OPERAND right[16 * DEPTH];
  const uint m0 = group.y * 16, n0 = group.x * 16, row = simdgroup / 2 * 8, column = simdgroup % 2 * 8;
  simdgroup_float8x8 sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint k0 = 0; k0 < size.z; k0 += DEPTH) {
    for (uint i = tid; i < 16 * DEPTH; i += 128) {
      left[i] = a[(m0 + i / DEPTH) * size.z + k0 + i % DEPTH];
      right[i] = b[(n0 + i / DEPTH) * size.z + k0 + i % DEPTH];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < DEPTH; k += 8) {
      simdgroup_matrix<OPERAND, 8, 8> l, r;
      simdgroup_load(l, left + row * DEPTH + k, DEPTH);
      simdgroup_load(r, right + column * DEPTH + k, DEPTH, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(sum, l, r, sum);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  simdgroup_store(sum, c + (m0 + row) * size.y + n0 + column, size.y);
}
