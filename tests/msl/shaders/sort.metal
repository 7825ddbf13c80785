// Counting sort of keys in one threadgroup: histogram, scan, scatter.
#include <metal_stdlib>
using namespace metal;

constant constexpr uint KEYS = 128;

kernel void sort(device const uint* keys [[buffer(0)]], device uint* order [[buffer(1)]], device uint* begin [[buffer(2)]],
                 constant uint& count [[buffer(3)]], uint tid [[thread_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup atomic_uint counts[KEYS];
  threadgroup uint totals[KEYS / 32];
  atomic_store_explicit(&counts[tid], 0u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = tid; i < count; i += KEYS) atomic_fetch_add_explicit(&counts[keys[i]], 1u, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const uint mine = atomic_load_explicit(&counts[tid], memory_order_relaxed);
  uint before = simd_prefix_exclusive_sum(mine);
  if (lane == 31) totals[simdgroup] = before + mine;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint s = 0; s < simdgroup; ++s) before += totals[s];
  begin[tid] = before;
  atomic_store_explicit(&counts[tid], before, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = tid; i < count; i += KEYS) {
    order[atomic_fetch_add_explicit(&counts[keys[i]], 1u, memory_order_relaxed)] = i;
  }
}
