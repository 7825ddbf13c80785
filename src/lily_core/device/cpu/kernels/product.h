// Register-blocked products of small f32 matrices, the inner loop of the prefill kernels.
#pragma once

#include <cstddef>

#include "device/cpu/kernels/simd.h"

namespace lily::cpu::LILY_ISA {

// A register tile is kTileRows × kTileColumns accumulators: as many as leave registers for one row of b and one element of a.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTileRows = 12;
#else
constexpr int kTileRows = 6;
#endif
constexpr int kTileColumns = 2 * kLanes;

// Element (i, j) lies at `at[i * row + j * column]`; a transposed matrix swaps the strides.
struct Strided {
  const float* at;
  std::size_t row;
  std::size_t column;
};

template <int kRows>
static inline void product_tile(Strided a, const float* b, std::size_t b_row, std::uint32_t depth, bool accumulate, float* c,
                                std::size_t c_row) {
  Vf acc[kRows][2];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
    acc[i][0] = accumulate ? loadf(c + i * c_row) : Vf{};
    acc[i][1] = accumulate ? loadf(c + i * c_row + kLanes) : Vf{};
  }
  for (std::uint32_t k = 0; k < depth; ++k) {
    const Vf b0 = loadf(b), b1 = loadf(b + kLanes);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const Vf x = splat(a.at[i * a.row]);
      acc[i][0] += x * b0;
      acc[i][1] += x * b1;
    }
    a.at += a.column;
    b += b_row;
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
    storef(c + i * c_row, acc[i][0]);
    storef(c + i * c_row + kLanes, acc[i][1]);
  }
}

// The tile of `rows` rows, 1 to kTileRows.
template <int kRows = kTileRows>
static inline void product_tile_of(std::uint32_t rows, Strided a, const float* b, std::size_t b_row, std::uint32_t depth,
                                   bool accumulate, float* c, std::size_t c_row) {
  if constexpr (kRows > 1) {
    if (rows < std::uint32_t(kRows)) return product_tile_of<kRows - 1>(rows, a, b, b_row, depth, accumulate, c, c_row);
  }
  product_tile<kRows>(a, b, b_row, depth, accumulate, c, c_row);
}

// Cuts `rows` into blocks of nearly equal size, so that no tile is left with one row: block(begin, rows of the block).
template <int kMost = kTileRows, typename Block>
static inline void for_row_blocks(std::uint32_t rows, Block block) {
  const std::uint32_t blocks = (rows + kMost - 1) / kMost;
  for (std::uint32_t i = 0; i < blocks; ++i) {
    const std::uint32_t begin = rows * i / blocks, end = rows * (i + 1) / blocks;
    block(begin, end - begin);
  }
}

// c = a b, or c += a b: a [rows, depth], b [depth, columns], columns a multiple of kTileColumns.
static inline void product(Strided a, const float* b, std::size_t b_row, std::uint32_t rows, std::uint32_t depth,
                           std::uint32_t columns, bool accumulate, float* c, std::size_t c_row) {
  for_row_blocks(rows, [&](std::uint32_t begin, std::uint32_t count) {
    for (std::uint32_t j = 0; j < columns; j += kTileColumns)
      product_tile_of(count, {a.at + begin * a.row, a.row, a.column}, b + j, b_row, depth, accumulate,
                      c + begin * c_row + j, c_row);
  });
}

}  // namespace lily::cpu::LILY_ISA
