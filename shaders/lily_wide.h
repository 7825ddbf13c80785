// Sums of 64-bit integers over simdgroups and threadgroups. Probabilities are added as integers: exact, so in any order the same.
#pragma once

#include "lily_math.h"

// Metal's simdgroup sums take 32 bits: three limbs of 24 bits leave room for 32 lanes.
static inline ulong simd_sum_wide(ulong value) {
  const uint low = simd_sum(uint(value) & 0xffffffu), middle = simd_sum(uint(value >> 24u) & 0xffffffu);
  return ulong(low) + (ulong(middle) << 24u) + (ulong(simd_sum(uint(value >> 48u))) << 48u);
}
static inline ulong simd_prefix_wide(ulong value) {
  const uint low = simd_prefix_exclusive_sum(uint(value) & 0xffffffu);
  const uint middle = simd_prefix_exclusive_sum(uint(value >> 24u) & 0xffffffu);
  return ulong(low) + (ulong(middle) << 24u) + (ulong(simd_prefix_exclusive_sum(uint(value >> 48u))) << 48u);
}

// value * fraction / 2^32, rounded down; value below 2^62.
static inline ulong scaled(ulong value, uint fraction) {
  return (value >> 32u) * fraction + ((value & 0xffffffffu) * fraction >> 32u);
}

struct Prefix {
  ulong before;  // the sum of the threads in front of this one
  ulong total;   // of all threads
};

// Over a threadgroup of PARTS simdgroups; `parts` is [PARTS].
template <uint PARTS>
static inline Prefix threadgroup_prefix(ulong value, threadgroup ulong* parts, Thread self) {
  Prefix prefix;
  prefix.before = simd_prefix_wide(value);
  if (self.lane == LILY_SIMD_WIDTH - 1u) parts[self.simdgroup] = prefix.before + value;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  prefix.total = 0u;
  for (uint i = 0; i < PARTS; ++i) {
    if (i == self.simdgroup) prefix.before += prefix.total;
    prefix.total += parts[i];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return prefix;
}
