// y = x Wᵀ for a quantised weight W and many rows x. A panel of codes is unpacked once per tile and passes by all rows: as f32,
// or as integers that meet rows of integers (int_tile.h).
#pragma once

#include <algorithm>
#include <cstddef>

#include "device/cpu/kernels/activation.h"
#include "device/cpu/kernels/int_tile.h"
#include "device/cpu/kernels/output.h"
#include "device/cpu/kernels/quant.h"
#include "device/cpu/kernels/product.h"
#include "device/cpu/kernels/scratch.h"

namespace lily::cpu::LILY_ISA {

// A panel of floats (128 KiB) stays in the second-level cache while all rows of the block pass by, and a sliver of a register
// tile's rows in the first. Two panels of integers, one that is multiplied and one that is written, stay in the first one
// (at most 32 KiB with 16 lanes): few rows, as the experts have them, do not repay the way to the second and back.
constexpr std::uint32_t kGemmColumns = 128;
constexpr std::uint32_t kGemmDepth = 256;                     // of a panel of floats
constexpr std::uint32_t kGemmIntDepth = 256 * kIntegerParts;  // of a panel of integers
constexpr std::uint32_t kGemmRows = 256;
constexpr std::uint32_t kSliverStride = kGemmDepth + 16;  // rows of x are often 4096 bytes apart: all in one cache set
constexpr std::uint32_t kGemmWeights = 2;                 // at most, gate and up
static_assert(kGemmColumns % kTileColumns == 0);

// The widest rows that a model's matrix products read.
static inline std::uint32_t widest_row(const ModelConstants& model) {
  return std::max({model.hidden_size, model.value_dim(), model.num_attention_heads * model.head_dim, model.moe_intermediate_size,
                   model.shared_expert_intermediate_size});
}

struct GemmScratch {
  GemmScratch(const KernelCall& call, Scratch& scratch)
      : operands(call.operands), format(call.format), width(0), rows(0) {
    const std::uint32_t columns = operands == Operands::kInt16 ? kTileColumns : kGemmColumns;
    for (float*& one : product) one = scratch.take<float>(kGemmRows * columns);
    if (operands == Operands::kInt16) {
      const std::size_t widest = widest_row(*call.model), groups = widest / LILY_GROUP_SIZE;
      ints = scratch.take<std::byte>(kGemmRows * groups * kRowGroupBytes);
      row_scales = scratch.take<float>(kGemmRows);
      for (Vi*& one : int_panel) one = scratch.take<Vi>(kGemmIntDepth / LILY_GROUP_SIZE * panel_vectors(is_4_bit(format)));
      scales = scratch.take<float>(kTileColumns * groups);
      biases = scratch.take<float>(kTileColumns * groups);
    } else {
      at = scratch.take<const float*>(kGemmRows);
      panel = scratch.take<float>(kGemmColumns * kGemmDepth);
      sliver = scratch.take<float>(kTileRows * kSliverStride);
    }
  }

  // The operand is `count` rows of `row_width` floats.
  void hold(std::uint32_t count, std::uint32_t row_width) { rows = count, width = row_width; }
  // Makes them ready: x_i = row_at(i).
  template <typename RowAt>
  void set_rows(RowAt row_at) {
    if (operands == Operands::kFloat32) {
      for (std::uint32_t i = 0; i < rows; ++i) at[i] = row_at(i);
      return;
    }
    for_row_blocks<kIntTileRows>(rows, [&](std::uint32_t begin, std::uint32_t count) {
      for (std::uint32_t i = 0; i < count; ++i)
        row_scales[begin + i] = quantise_tile_row(row_at(begin + i), width, is_4_bit(format), i, count, ints_of(begin));
    });
  }
  // Of the block of rows that starts with `row`.
  std::byte* ints_of(std::uint32_t row) const { return ints + row * kRowGroupBytes * (width / LILY_GROUP_SIZE); }

  Operands operands;
  Format format;
  std::uint32_t width, rows;     // of the operand
  float* product[kGemmWeights];  // [kGemmRows][kGemmColumns], or [kGemmRows][kTileColumns] of integers

  const float** at = nullptr;  // [kGemmRows]
  float* panel = nullptr;      // [column / kTileColumns][k][column % kTileColumns]
  float* sliver = nullptr;     // [kTileRows][kSliverStride]

  std::byte* ints = nullptr;    // [block of rows][group], as quantise_tile_row writes them
  float* row_scales = nullptr;  // [rows]
  Vi* int_panel[2] = {};        // [group][panel_vectors]
  float* scales = nullptr;      // [group][kTileColumns]
  float* biases = nullptr;      // likewise
};

// Matrix `matrix` of the stack of [rows, columns] matrices bound from buffer `index` on.
static inline Weight stacked_weight(const KernelCall& call, int index, std::uint32_t matrix, std::uint32_t rows,
                                    std::uint32_t columns) {
  const Weight w = weight_at(call, index);
  const std::size_t groups = std::size_t(matrix) * rows * (columns / LILY_GROUP_SIZE);
  const std::size_t pair_bytes = groups * (is_wide(call.format) ? sizeof(float) : sizeof(std::uint16_t));
  return {w.codes + groups * group_bytes(call.format), w.scales + pair_bytes, w.biases + pair_bytes};
}

// Columns [n, n + columns) of the products with `w`, columns <= kGemmColumns, of rows of floats: to `product`.
void gemm_floats(const Weight& w, std::uint32_t n, std::uint32_t columns, const GemmScratch& s, float* product);

// The strips of kTileColumns columns in [n0, n1), of one weight after the other: strip i is of weight i % weights. Multiplies one
// with rows of integers, but for their scales, to s.product[i % weights]. Strips come in order, since each unpacks the next.
void gemm_ints(const Weight* w, std::uint32_t weights, std::uint32_t n0, std::uint32_t n1, std::uint32_t strip,
               const GemmScratch& s);

// The products x_i · W_n of the operand's rows and n in [n0, n1), for each of the weights: finish(n, count, values) for columns
// [n, n + count), where values(which, i) are those of row i and weight `which`, to be asked for once.
template <std::uint32_t kWeights, typename Finish>
static inline void gemm(const Weight (&w)[kWeights], std::uint32_t n0, std::uint32_t n1, const GemmScratch& s, Finish finish) {
  if (s.operands == Operands::kFloat32) {
    for (std::uint32_t n = n0; n < n1; n += kGemmColumns) {
      const std::uint32_t columns = std::min(n1 - n, kGemmColumns);
      for (std::uint32_t i = 0; i < kWeights; ++i) gemm_floats(w[i], n, columns, s, s.product[i]);
      finish(n, columns, [&](int which, std::uint32_t row) -> const float* {
        float* values = s.product[which] + row * kGemmColumns;
        for (std::uint32_t i = 0; i < columns; i += kLanes) storef(values + i, poisoned(loadf(values + i)));
        return values;
      });
    }
    return;
  }
  std::uint32_t strip = 0;
  for (std::uint32_t n = n0; n < n1; n += kTileColumns) {
    for (std::uint32_t i = 0; i < kWeights; ++i) gemm_ints(w, kWeights, n0, n1, strip++, s);
    finish(n, std::min<std::uint32_t>(n1 - n, kTileColumns), [&](int which, std::uint32_t row) -> const float* {
      float* values = s.product[which] + row * kTileColumns;
      for (int i = 0; i < kTileColumns; i += kLanes) storef(values + i, poisoned(s.row_scales[row] * loadf(values + i)));
      return values;
    });
  }
}

// y = x Wᵀ over the tiles of a dispatch of extent (rows of W, rows of x), x being buffer 0 and W the next ones:
// store(row, column, count, values) per row and tile.
template <typename Store>
static inline void gemm_tiles(const KernelCall& call, std::uint32_t first, std::uint32_t last, std::uint32_t width, Store store) {
  const float* x = buffer<const float>(call, 0);
  const Weight w = weight_at(call, 1);
  GemmScratch scratch = scratch_of<GemmScratch>(call);
  for (std::uint32_t index = first; index < last; ++index) {
    const Tile t = tile_at(call, index);
    scratch.hold(t.y1 - t.y0, width);
    if (!is_ready(call, t.y0 + 1)) scratch.set_rows([&](std::uint32_t i) { return x + std::size_t(t.y0 + i) * width; });
    gemm({w}, t.x0, t.x1, scratch, [&](std::uint32_t n, std::uint32_t count, auto values) {
      for (std::uint32_t row = t.y0; row < t.y1; ++row) store(row, n, count, values(0, row - t.y0));
    });
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

// Columns [n0, n1) of silu(x W_gateᵀ) · (x W_upᵀ), row i to `to` + i · to_row.
static inline void gemm_gate_up(const Weight& gate, const Weight& up, std::uint32_t n0, std::uint32_t n1,
                                const GemmScratch& scratch, float* to, std::size_t to_row) {
  gemm({gate, up}, n0, n1, scratch, [&](std::uint32_t n, std::uint32_t count, auto values) {
    for (std::uint32_t i = 0; i < scratch.rows; ++i) swiglu(values(0, i), values(1, i), count, to + i * to_row + n);
  });
}

}  // namespace lily::cpu::LILY_ISA
