// 8 x 8 matrices of a simdgroup: loads and stores that stop at the last row, and diagonals. Where an element lies among the
// lanes is the hardware's business, so what is not a whole matrix goes through `scratch`: 64 elements of the simdgroup's own.
#pragma once

#include <metal_simdgroup_matrix>
#include <metal_stdlib>

using namespace metal;

// Rows of `length` from `first` on, at most 8.
inline uint rows_from(uint first, uint length) { return first < length ? min(length - first, 8u) : 0u; }

template <typename T>
inline void set_zero(thread simdgroup_matrix<T, 8, 8>& matrix) {
  matrix = make_filled_simdgroup_matrix<T, 8, 8>(T(0));
}

// The 8 x 8 elements at `from`, rows `stride` apart; rows from `rows` on are 0 and not read.
template <typename T>
inline void load_rows(thread simdgroup_matrix<T, 8, 8>& matrix, device const T* from, uint stride, uint rows,
                      bool transpose, threadgroup T* scratch, uint lane) {
  if (rows >= 8) {
    simdgroup_load(matrix, from, stride, ulong2(0, 0), transpose);
    return;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = lane; i < 64; i += 32) scratch[i] = i / 8 < rows ? from[ulong(i / 8) * stride + i % 8] : T(0);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_load(matrix, scratch, 8, ulong2(0, 0), transpose);
}

// Stores the first `rows` rows.
inline void store_rows(thread const simdgroup_float8x8& matrix, device float* to, uint stride, uint rows,
                       threadgroup float* scratch, uint lane) {
  if (rows >= 8) {
    simdgroup_store(matrix, to, stride);
    return;
  }
  simdgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_store(matrix, scratch, 8);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = lane; i < rows * 8; i += 32) to[ulong(i / 8) * stride + i % 8] = scratch[i];
}

// value(i) on the diagonal: a factor per row of what it is multiplied with.
inline void load_diagonal(thread simdgroup_float8x8& matrix, threadgroup const float* values, threadgroup float* scratch,
                          uint lane) {
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = lane; i < 64; i += 32) scratch[i] = i / 8 == i % 8 ? values[i % 8] : 0.0f;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_load(matrix, scratch, 8);
}
