// What the matrix kernels of a step multiply: rows that a threadgroup norms on their way into its stage.
#pragma once

#include "lily_args.h"
#include "lily_math.h"

#define LILY_MATVEC_SIMDGROUPS (LILY_MATVEC_THREADS / LILY_SIMD_WIDTH)
#define LILY_NORM_PARTS (LILY_MAX_STEP_ROWS * LILY_MATVEC_SIMDGROUPS)
#define LILY_ALL_ROWS 0x76543210u

// gain x / sqrt(mean(x^2) + eps) of rows of the residual stream. The sums of squares come first: measure(), by all threads.
struct NormedRows {
  struct Row {
    device const float4* x;
    device const float4* gain;
    float scale;

    float4 quad(uint at) const thread { return x[at] * scale * gain[at]; }
  };

  device const float* x;     // [R, H]
  device const float* gain;  // [H]
  threadgroup float* parts;  // [LILY_NORM_PARTS]: sums of squares by row and simdgroup
  uint places;               // nibble r: which row of x is row r

  device const float4* row_of_x(uint r) const thread {
    return (device const float4*)(x + (ulong)(places >> (4u * r) & 15u) * LILY_HIDDEN_SIZE);
  }
  void measure(uint rows, Thread self) const thread {
    for (uint r = 0; r < rows; ++r) {
      device const float4* quads = row_of_x(r);
      float sum = 0.0f;
      for (uint q = self.index; q < LILY_HIDDEN_SIZE / 4u; q += LILY_MATVEC_THREADS) sum += dot(quads[q], quads[q]);
      sum = simd_sum(sum);
      if (self.lane == 0u) parts[r * LILY_MATVEC_SIMDGROUPS + self.simdgroup] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  Row row(uint r) const thread {
    Row result;
    result.x = row_of_x(r);
    result.gain = (device const float4*)gain;
    const float sum = parts_sum<LILY_MATVEC_SIMDGROUPS>(parts + r * LILY_MATVEC_SIMDGROUPS);
    result.scale = rsqrt(poisoned(sum) / float(LILY_HIDDEN_SIZE) + LILY_RMS_NORM_EPS);
    return result;
  }
};

static inline NormedRows normed_rows(device const float* x, device const float* gain, threadgroup float* parts, uint places) {
  NormedRows rows;
  rows.x = x;
  rows.gain = gain;
  rows.parts = parts;
  rows.places = places;
  return rows;
}

// Rows that are ready, as halves.
template <uint COLUMNS>
struct HalfRows {
  struct Row {
    device const half4* values;

    float4 quad(uint at) const thread { return float4(values[at]); }
  };

  device const half* values;  // [R, COLUMNS]

  void measure(uint, Thread) const thread {}
  Row row(uint r) const thread {
    Row result;
    result.values = (device const half4*)(values + (ulong)r * COLUMNS);
    return result;
  }
};
