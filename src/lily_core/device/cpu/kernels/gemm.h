// y = x Wᵀ for a quantised weight W and many rows x: codes are turned into f32 once per tile and block of rows.
#pragma once

#include <cstddef>

#include "device/cpu/kernels/activation.h"
#include "device/cpu/kernels/output.h"
#include "device/cpu/kernels/product.h"
#include "device/cpu/kernels/quant.h"
#include "device/cpu/kernels/scratch.h"

namespace lily::cpu::LILY_ISA {

// The panel (columns × depth floats, 128 KiB) stays in the second-level cache while all rows of the block pass by;
// a sliver of a register tile's rows (depth floats each) stays in the first.
constexpr std::uint32_t kGemmColumns = 128;
constexpr std::uint32_t kGemmDepth = 256;
constexpr std::uint32_t kGemmRows = 256;
constexpr std::uint32_t kSliverStride = kGemmDepth + 16;  // rows of x are often 4096 bytes apart: all in one cache set
static_assert(kGemmColumns % kTileColumns == 0);

struct GemmScratch {
  GemmScratch(const KernelCall&, Scratch& scratch)
      : panel(scratch.take<float>(kGemmColumns * kGemmDepth)),
        sliver(scratch.take<float>(kTileRows * kSliverStride)),
        product{scratch.take<float>(kGemmRows * kGemmColumns), scratch.take<float>(kGemmRows * kGemmColumns)} {}

  float* panel;       // [column / kTileColumns][k][column % kTileColumns]
  float* sliver;      // [kTileRows][kSliverStride]
  float* product[2];  // [kGemmRows][kGemmColumns]; the second for gate and up
};

// Matrix `matrix` of the stack of [rows, columns] matrices bound from buffer `index` on.
static inline Weight stacked_weight(const KernelCall& call, int index, std::uint32_t matrix, std::uint32_t rows,
                                    std::uint32_t columns) {
  const Weight w = weight_at(call, index);
  const std::size_t groups = std::size_t(matrix) * rows * (columns / LILY_GROUP_SIZE);
  const std::size_t pair_bytes = groups * (is_wide(call.format) ? sizeof(float) : sizeof(std::uint16_t));
  return {w.codes + groups * group_bytes(call.format), w.scales + pair_bytes, w.biases + pair_bytes};
}

// Rows [n0, n0 + columns) of the weight, elements [k0, k0 + depth) of each, as panels; columns past the last are 0.
// Lanes are rows of the weight: one word of each, transposed, holds 32 / kBits neighbours that are shifted out one by one.
template <Format kFormat>
static inline void unpack_panel(const Weight& w, std::uint32_t width, std::uint32_t n0, std::uint32_t columns, std::uint32_t k0,
                                std::uint32_t depth, float* panel) {
  constexpr int kBits = is_4_bit(kFormat) ? 4 : 8, kCodes = 32 / kBits, kWords = LILY_GROUP_SIZE / kCodes;
  const std::uint32_t padded = (columns + kTileColumns - 1) / kTileColumns * kTileColumns;
  for (std::uint32_t n = 0; n < padded; n += kLanes) {
    float* to = panel + std::size_t(n / kTileColumns) * kTileColumns * kGemmDepth + n % kTileColumns;
    const std::uint32_t lanes = n >= columns ? 0 : columns - n < std::uint32_t(kLanes) ? columns - n : kLanes;
    for (std::uint32_t k = 0; k < depth; k += LILY_GROUP_SIZE) {
      std::uint32_t words[kWords][kLanes];
      float scales[kLanes], biases[kLanes];
      if (lanes < std::uint32_t(kLanes)) {
        std::memset(words, 0, sizeof words);
        std::memset(scales, 0, sizeof scales);
        std::memset(biases, 0, sizeof biases);
      }
      for (std::uint32_t lane = 0; lane < lanes; ++lane) {
        const std::size_t group = (std::size_t(n0 + n + lane) * width + k0 + k) / LILY_GROUP_SIZE;
        scales[lane] = pair_value<kFormat>(w.scales, group);
        biases[lane] = pair_value<kFormat>(w.biases, group);
        const std::uint8_t* codes = w.codes + group * group_bytes(kFormat);
        for (int i = 0; i < kWords; ++i) words[i][lane] = load<std::uint32_t>(codes + 4 * i);
      }
      const Vf scale = loadf(scales), bias = loadf(biases);
      for (int i = 0; i < kWords; ++i) {
        const Vi word = load<Vi>(words[i]);
#pragma GCC unroll 8
        for (int j = 0; j < kCodes; ++j) {
          const Vi code = (word >> (kBits * j)) & ((1 << kBits) - 1);
          storef(to, to_float(code) * scale + bias);
          to += kTileColumns;
        }
      }
    }
  }
}

// product[i, n - n0] = x_i · W_n for i < rows <= kGemmRows and n in [n0, n0 + columns), columns <= kGemmColumns.
// x_i = row_at(i), `width` elements.
template <typename RowAt>
static inline void gemm(Format format, const Weight& w, std::uint32_t width, std::uint32_t n0, std::uint32_t columns,
                        RowAt row_at, std::uint32_t rows, const GemmScratch& scratch, float* product) {
  for (std::uint32_t k0 = 0; k0 < width; k0 += kGemmDepth) {
    const std::uint32_t depth = width - k0 < kGemmDepth ? width - k0 : kGemmDepth;
    with_format(format, [&]<Format kFormat>() { unpack_panel<kFormat>(w, width, n0, columns, k0, depth, scratch.panel); });
    for_row_blocks(rows, [&](std::uint32_t begin, std::uint32_t count) {
      for (std::uint32_t i = 0; i < count; ++i) {
        const float* x = row_at(begin + i) + k0;
        for (std::uint32_t k = 0; k < depth; k += kLanes) storef(scratch.sliver + i * kSliverStride + k, loadf(x + k));
      }
      // The next block's rows come while this one is multiplied: they are short and far apart, so no hardware foresees them.
      for (std::uint32_t i = begin + count; i < rows && i < begin + count + kTileRows; ++i) {
        const float* x = row_at(i) + k0;
        for (std::uint32_t k = 0; k < depth; k += 16) __builtin_prefetch(x + k);
      }
      for (std::uint32_t n = 0; n < columns; n += kTileColumns)
        product_tile_of(count, {scratch.sliver, kSliverStride, 1}, scratch.panel + n * kGemmDepth, kTileColumns, depth, k0 > 0,
                        product + begin * kGemmColumns + n, kGemmColumns);
    });
  }
}

// y = x Wᵀ over the tiles of a dispatch of extent (rows of W, rows of x), x being buffer 0 and W the next ones:
// store(row, column, count, values) per row and tile.
template <typename Store>
static inline void gemm_tiles(const KernelCall& call, std::uint32_t first, std::uint32_t last, std::uint32_t width, Store store) {
  const float* x = buffer<const float>(call, 0);
  const Weight w = weight_at(call, 1);
  const GemmScratch scratch = scratch_of<GemmScratch>(call);
  for (std::uint32_t index = first; index < last; ++index) {
    const Tile t = tile_at(call, index);
    const std::uint32_t columns = t.x1 - t.x0;
    gemm(call.format, w, width, t.x0, columns, [&](std::uint32_t i) { return x + std::size_t(t.y0 + i) * width; }, t.y1 - t.y0,
         scratch, scratch.product[0]);
    for (std::uint32_t row = t.y0; row < t.y1; ++row)
      store(row, t.x0, columns, scratch.product[0] + (row - t.y0) * kGemmColumns);
  }
}

// The columns of y = x Wᵀ into `outputs`, of which each is a matrix of its own.
template <int kParts>
static inline void gemm_parts(const KernelCall& call, std::uint32_t first, std::uint32_t last, std::uint32_t width,
                              const OutputParts<kParts>& outputs) {
  gemm_tiles(call, first, last, width, [&](std::uint32_t row, std::uint32_t begin, std::uint32_t count, const float* values) {
    auto store = [&](const OutputPart& part, std::uint32_t column, std::uint32_t from, std::uint32_t width_of_piece) {
      std::memcpy(part.to + std::size_t(row) * part.width + column, values + (from - begin), width_of_piece * sizeof(float));
    };
    outputs.for_pieces(begin, begin + count, store);
  });
}

// residual += x Wᵀ: buffer 4 is the residual stream, H wide.
static inline void gemm_add(const KernelCall& call, std::uint32_t first, std::uint32_t last, std::uint32_t width) {
  float* residual = buffer<float>(call, 4);
  gemm_tiles(call, first, last, width, [&](std::uint32_t row, std::uint32_t begin, std::uint32_t count, const float* values) {
    float* to = residual + std::size_t(row) * call.model->hidden_size + begin;
    for (std::uint32_t i = 0; i < count; ++i) to[i] += values[i];
  });
}

// Columns [n0, n0 + columns) of silu(x W_gateᵀ) · (x W_upᵀ), row i to `to` + i · to_row.
template <typename RowAt>
static inline void gemm_gate_up(Format format, const Weight& gate, const Weight& up, std::uint32_t width, std::uint32_t n0,
                                std::uint32_t columns, RowAt row_at, std::uint32_t rows, const GemmScratch& scratch, float* to,
                                std::size_t to_row) {
  gemm(format, gate, width, n0, columns, row_at, rows, scratch, scratch.product[0]);
  gemm(format, up, width, n0, columns, row_at, rows, scratch, scratch.product[1]);
  for (std::uint32_t i = 0; i < rows; ++i)
    swiglu(scratch.product[0] + i * kGemmColumns, scratch.product[1] + i * kGemmColumns, columns, to + i * to_row);
}

}  // namespace lily::cpu::LILY_ISA
