// Tiles of Y Wᵀ: half rows Y with an affine-quantised weight W, float32 sums. A tile of W is unpacked to `T` in threadgroup
// memory, never more. Two forms of the product: simdgroup matrices (every Apple GPU), and for half operands Metal 4's tensor
// operations (LILY_GEMM_FORM 1).
//
// A threadgroup is 4 simdgroups; its tile is kRows x 64 with kRows 64 (dense) or 32 (an expert's block).
// Accumulators: a simdgroup has kRows / 2 x 32 floats of the tile: 32 registers a lane at 64 rows, 16 at 32 rows.
// Threadgroup memory: simdgroup matrices take 32 columns a step: (64 + 64) rows · 40 halves = 10,240 bytes at 64 rows, so that
// three groups fit into 32 KB; 9,216 at 32 rows (the results pass through); (64 + 64) · 36 floats = 18,432 for a float tile.
// Tensor operations take 64: (64 + 64) · 64 halves = 16,384 bytes, 12,288 at 32 rows.
// Reads: an element of W is read once for every kRows rows, an element of Y once for every 64 rows of W.
#pragma once

#include "lily_args.h"
#include "lily_grid.h"
#include "lily_math.h"
#include "lily_matrix.h"
#include "lily_quant.h"
#if LILY_GEMM_FORM == 1
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
#include <metal_tensor>
constant constexpr bool kHasTensors = true;
#else
constant constexpr bool kHasTensors = false;
#endif

// A matrix, or one row of it.
struct GemmWeight {
  device const uint4* codes;
  device const WeightPair* scales;
  device const WeightPair* biases;
};

// The weight from row `row` on.
inline GemmWeight gemm_row(GemmWeight w, ulong row, uint columns) {
  const GemmWeight at = {w.codes + row * (columns * LILY_WEIGHT_BITS / 128), w.scales + row * (columns / LILY_GROUP_SIZE),
                         w.biases + row * (columns / LILY_GROUP_SIZE)};
  return at;
}

template <typename T>
constexpr bool gemm_uses_tensors() { return kHasTensors && sizeof(T) == 2; }
// Columns of Y and W in a step.
template <typename T>
constexpr uint gemm_depth() { return gemm_uses_tensors<T>() ? 64 : 32; }
// Elements between rows of a staged tile; the padding spreads rows over the banks.
template <typename T>
constexpr uint gemm_stride() { return gemm_uses_tensors<T>() ? 64 : 32 + 16 / sizeof(T); }
// Floats of threadgroup memory: the staged tiles, later the results.
template <typename T, uint kRows>
constexpr uint gemm_memory() {
  constexpr uint kTiles = (kRows + LILY_GEMM_COLUMNS) * gemm_stride<T>() * sizeof(T) / 4, kResults = 4 * 16 * 36;
  return kTiles > kResults ? kTiles : kResults;
}

// What one thread brings into the tiles: a part of one row of Y and of one row of W. The next step's parts are fetched into
// registers while this step's product runs.
template <typename T, uint kRows>
struct GemmStage {
  static_assert(LILY_GEMM_THREADS % kRows == 0 && LILY_GEMM_THREADS % LILY_GEMM_COLUMNS == 0, "a thread has one row");

  device const half* y_row;
  GemmWeight w_row;
  static constexpr constant uint kQuads = 16 / LILY_WEIGHT_BITS;  // of codes in 8 bytes

  half4 y[kRows * gemm_depth<T>() / LILY_GEMM_THREADS / 4];
  uint2 codes[LILY_GEMM_COLUMNS * gemm_depth<T>() / LILY_GEMM_THREADS * LILY_WEIGHT_BITS / 64];
  float scale;
  float bias;

  void fetch(uint k, uint thread_index) {
    constexpr uint kYParts = LILY_GEMM_THREADS / kRows, kWParts = LILY_GEMM_THREADS / LILY_GEMM_COLUMNS;
    constexpr uint kYLength = gemm_depth<T>() / kYParts, kWLength = gemm_depth<T>() / kWParts;
    const uint y_at = k + thread_index % kYParts * kYLength, w_at = k + thread_index % kWParts * kWLength;
    for (uint i = 0; i < kYLength / 4; ++i) y[i] = ((device const half4*)(y_row + y_at))[i];
    device const uint2* from = (device const uint2*)w_row.codes + w_at * LILY_WEIGHT_BITS / 64;
    for (uint i = 0; i < kWLength * LILY_WEIGHT_BITS / 64; ++i) codes[i] = from[i];
    scale = pair_value(w_row.scales[w_at / LILY_GROUP_SIZE]);
    bias = pair_value(w_row.biases[w_at / LILY_GROUP_SIZE]);
  }

  void put(threadgroup T* y_tile, threadgroup T* w_tile, uint thread_index) const {
    constexpr uint kYParts = LILY_GEMM_THREADS / kRows, kWParts = LILY_GEMM_THREADS / LILY_GEMM_COLUMNS;
    constexpr uint kYLength = gemm_depth<T>() / kYParts, kWLength = gemm_depth<T>() / kWParts;
    threadgroup T* y_to = y_tile + thread_index / kYParts * gemm_stride<T>() + thread_index % kYParts * kYLength;
    for (uint i = 0; i < kYLength / 4; ++i) ((threadgroup vec<T, 4>*)y_to)[i] = vec<T, 4>(y[i]);
    threadgroup T* w_to = w_tile + thread_index / kWParts * gemm_stride<T>() + thread_index % kWParts * kWLength;
    for (uint i = 0; i < kWLength / 4; ++i) {
      const uint2 word = codes[i / kQuads];
      const float4 quad = Codes<LILY_WEIGHT_BITS>::quad(uint4(word, 0u, 0u), i % kQuads);
      ((threadgroup vec<T, 4>*)w_to)[i] = vec<T, 4>(scale * quad + bias);
    }
  }
};

// The product through simdgroup matrices: simdgroup s has rows (s / 2) · kRows / 2 and columns (s % 2) · 32 of the tile.
template <typename T, uint kRows>
struct GemmSum {
  simdgroup_float8x8 sums[kRows / 16][4];

  void clear() {
    for (uint i = 0; i < kRows / 16; ++i)
      for (uint j = 0; j < 4; ++j) set_zero(sums[i][j]);
  }

  void add(threadgroup const T* y_tile, threadgroup const T* w_tile, uint simdgroup) {
    threadgroup const T* y = y_tile + simdgroup / 2 * (kRows / 2) * gemm_stride<T>();
    threadgroup const T* w = w_tile + simdgroup % 2 * 32 * gemm_stride<T>();
    for (uint k = 0; k < gemm_depth<T>(); k += 8) {
      simdgroup_matrix<T, 8, 8> a[kRows / 16], b[4];
      for (uint i = 0; i < kRows / 16; ++i) simdgroup_load(a[i], y + i * 8 * gemm_stride<T>() + k, gemm_stride<T>());
      for (uint j = 0; j < 4; ++j)
        simdgroup_load(b[j], w + j * 8 * gemm_stride<T>() + k, gemm_stride<T>(), ulong2(0, 0), true);
      for (uint i = 0; i < kRows / 16; ++i)
        for (uint j = 0; j < 4; ++j) simdgroup_multiply_accumulate(sums[i][j], a[i], b[j], sums[i][j]);
    }
  }

  // Hands the results to `output` in parts of 16 rows and 32 columns.
  template <typename Output>
  void finish(threadgroup float* memory, thread const Output& output, Thread at) {
    threadgroup float* part = memory + at.simdgroup * 16 * 36;
    for (uint p = 0; p < kRows / 32; ++p) {
      for (uint i = 0; i < 2; ++i)
        for (uint j = 0; j < 4; ++j) simdgroup_store(sums[2 * p + i][j], part + i * 8 * 36 + j * 8, 36);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      output.write(part, 36, at.simdgroup / 2 * (kRows / 2) + p * 16, at.simdgroup % 2 * 32, at.lane);
      simdgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
};

#if LILY_GEMM_FORM == 1
template <uint kRows>
constexpr mpp::tensor_ops::matmul2d_descriptor gemm_descriptor() {
  return mpp::tensor_ops::matmul2d_descriptor(int(kRows), int(LILY_GEMM_COLUMNS), 64, false, true, false,
                                              mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate);
}

// The same through a tensor operation of all four simdgroups.
template <uint kRows>
struct GemmSum<half, kRows> {
  typedef mpp::tensor_ops::matmul2d<gemm_descriptor<kRows>(), execution_simdgroups<4>> Product;
  typedef decltype(tensor((threadgroup half*)nullptr, dextents<int, 2>(64, 64))) Tile;
  typedef decltype(Product().template get_destination_cooperative_tensor<Tile, Tile, float>()) Sums;

  Sums sums;

  void clear() {
    for (ushort i = 0; i < sums.get_capacity(); ++i)
      if (sums.is_valid_element(i)) sums[i] = 0.0f;
  }

  void add(threadgroup half* y_tile, threadgroup half* w_tile, uint) {
    Tile y = tensor(y_tile, dextents<int, 2>(64, int(kRows)));
    Tile w = tensor(w_tile, dextents<int, 2>(64, int(LILY_GEMM_COLUMNS)));
    Product().run(y, w, sums);
  }

  template <typename Output>
  void finish(threadgroup float* memory, thread const Output& output, Thread at) {
    sums.store(tensor(memory, dextents<int, 2>(int(LILY_GEMM_COLUMNS), int(kRows))));
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint p = at.simdgroup; p < kRows / 16 * 2; p += 4)
      output.write(memory + p / 2 * 16 * LILY_GEMM_COLUMNS + p % 2 * 32, LILY_GEMM_COLUMNS, p / 2 * 16, p % 2 * 32, at.lane);
  }
};
#endif

// One tile. y_row and w_row are the rows that this thread stages: row index / (threads / kRows) of the tile's Y, row
// index / (threads / 64) of its W. Rows past the end may be any others: `output` leaves their results out.
template <typename T, uint kRows, typename Output>
inline void gemm(uint depth, device const half* y_row, GemmWeight w_row, threadgroup float* memory, thread const Output& output,
                 Thread at) {
  threadgroup T* y_tile = (threadgroup T*)memory;
  threadgroup T* w_tile = y_tile + kRows * gemm_stride<T>();
  GemmStage<T, kRows> stage;
  stage.y_row = y_row;
  stage.w_row = w_row;
  stage.fetch(0, at.index);
  GemmSum<T, kRows> sum;
  sum.clear();
  for (uint k = 0; k < depth; k += gemm_depth<T>()) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    stage.put(y_tile, w_tile, at.index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (k + gemm_depth<T>() < depth) stage.fetch(k + gemm_depth<T>(), at.index);
    sum.add(y_tile, w_tile, at.simdgroup);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum.finish(memory, output, at);
}

// Part of the result: columns [column0, columns) of rows [row0, rows). sink(row of W, row of Y, value) takes an
// element, as the stores of the step kernels do; it is NaN where it would be infinite.
template <typename Sink>
struct GemmColumns {
  Sink sink;
  uint row0, rows, column0, columns;

  void write(threadgroup const float* part, uint stride, uint row, uint column, uint lane) const {
    const uint to_column = column0 + column + lane;
    for (uint i = 0; i < 16; ++i)
      if (to_column < columns && row0 + row + i < rows) sink(to_column, row0 + row + i, poisoned(part[i * stride + lane]));
  }
};

// The product with gate and up: of 32 columns of the tile 16 are gate's and 16 are up's, so that a simdgroup has both.
template <typename Sink>
struct GemmGateUp {
  Sink sink;
  uint row0, rows, column0, columns;

  void write(threadgroup const float* part, uint stride, uint row, uint column, uint lane) const {
    const uint to_column = column0 + column / 2 + lane % 16;
    for (uint i = lane / 16; i < 16; i += 2) {
      const float gate = part[i * stride + lane % 16], up = part[i * stride + lane % 16 + 16];
      if (to_column < columns && row0 + row + i < rows) sink(to_column, row0 + row + i, poisoned(silu(gate) * up));
    }
  }
};

// The row of W that a thread stages for GemmGateUp.
inline GemmWeight gemm_gate_up_row(GemmWeight gate, GemmWeight up, uint column0, uint columns, uint depth, uint thread_index) {
  const uint row = thread_index / (LILY_GEMM_THREADS / LILY_GEMM_COLUMNS);
  const uint column = min(column0 + row / 32 * 16 + row % 16, columns - 1);
  return gemm_row(row / 16 % 2 ? up : gate, column, depth);
}

// The tile `group` of a dense product: rows of Y along y, rows of W along x.
template <typename T, typename Sink>
inline void gemm_dense(uint depth, device const half* y, uint rows, GemmWeight w, uint columns, Sink sink, uint2 group,
                       threadgroup float* memory, Thread at) {
  const uint row0 = group.y * LILY_GEMM_ROWS, column0 = group.x * LILY_GEMM_COLUMNS;
  const uint row = min(row0 + at.index / (LILY_GEMM_THREADS / LILY_GEMM_ROWS), rows - 1);
  const uint column = min(column0 + at.index / (LILY_GEMM_THREADS / LILY_GEMM_COLUMNS), columns - 1);
  const GemmColumns<Sink> output = {sink, row0, rows, column0, columns};
  gemm<T, LILY_GEMM_ROWS>(depth, y + ulong(row) * depth, gemm_row(w, column, depth), memory, output, at);
}

// One block of an expert's rows (moe_plan), as a tile: its rows of W begin at expert_row.
struct GemmBlock {
  uint begin, end;   // assignments in expert order
  ulong expert_row;
  bool is_empty;     // a sentinel
  bool is_missing;   // the expert is not loaded
};

inline GemmBlock gemm_block(device const ExpertBlock* blocks, device const uint* expert_slot, uint at, uint rows_of_expert) {
  const uint expert = blocks[at].expert;
  const uint slot = expert == LILY_NO_EXPERT ? LILY_NO_EXPERT : expert_slot[expert];
  const GemmBlock block = {blocks[at].begin, blocks[at].end, ulong(slot) * rows_of_expert, expert == LILY_NO_EXPERT,
                           expert != LILY_NO_EXPERT && slot == LILY_NO_EXPERT};
  return block;
}

// The assignment in expert order whose row a thread stages.
inline uint gemm_block_row(GemmBlock block, uint thread_index) {
  return min(block.begin + thread_index / (LILY_GEMM_THREADS / LILY_EXPERT_BLOCK), block.end - 1);
}
