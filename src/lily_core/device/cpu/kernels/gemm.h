// y = x Wᵀ for a quantised weight W and many rows x. A panel of codes is unpacked once per tile and passes by all rows: as f32,
// or as 16-bit integers that meet rows of 16-bit integers.
#pragma once

#include <algorithm>
#include <cstddef>

#include "device/cpu/kernels/activation.h"
#include "device/cpu/kernels/output.h"
#include "device/cpu/kernels/panel.h"
#include "device/cpu/kernels/product.h"
#include "device/cpu/kernels/scratch.h"
#include "device/cpu/kernels/shorts.h"

namespace lily::cpu::LILY_ISA {

// A panel of floats (128 KiB) stays in the second-level cache while all rows of the block pass by, and a sliver of a register
// tile's rows in the first. A panel of integers stays in the first one (32 KiB with 16 lanes): few rows, as the experts have
// them, do not repay the way to the second and back.
constexpr std::uint32_t kGemmColumns = 128;
constexpr std::uint32_t kGemmDepth = 256;        // of a panel of floats
constexpr std::uint32_t kGemmShortDepth = 512;   // of a panel of integers
constexpr std::uint32_t kGemmRows = 256;
constexpr std::uint32_t kSliverStride = kGemmDepth + 16;  // rows of x are often 4096 bytes apart: all in one cache set
constexpr std::uint32_t kShortPadding = 32;               // likewise
static_assert(kGemmColumns % kTileColumns == 0);

// The widest rows that a model's matrix products read.
static inline std::uint32_t widest_row(const ModelConstants& model) {
  return std::max({model.hidden_size, model.value_dim(), model.num_attention_heads * model.head_dim, model.moe_intermediate_size,
                   model.shared_expert_intermediate_size});
}

struct GemmScratch {
  GemmScratch(const KernelCall& call, Scratch& scratch)
      : operands(call.operands),
        width(0),
        rows(0),
        at(scratch.take<const float*>(kGemmRows)),
        product{scratch.take<float>(kGemmRows * kGemmColumns), scratch.take<float>(kGemmRows * kGemmColumns)} {
    if (operands == Operands::kInt16) {
      const std::size_t widest = widest_row(*call.model);
      shorts = scratch.take<std::int16_t>(kGemmRows * (widest + kShortPadding));
      sums = scratch.take<float>(kGemmRows * (widest / LILY_GROUP_SIZE));
      row_scales = scratch.take<float>(kGemmRows);
      short_panel = scratch.take<Vs>(kGemmShortDepth);
      scales = scratch.take<float>(kTileColumns * (widest / LILY_GROUP_SIZE));
      biases = scratch.take<float>(kTileColumns * (widest / LILY_GROUP_SIZE));
    } else {
      panel = scratch.take<float>(kGemmColumns * kGemmDepth);
      sliver = scratch.take<float>(kTileRows * kSliverStride);
    }
  }

  // The operand is `count` rows of `row_width` floats.
  void hold(std::uint32_t count, std::uint32_t row_width) { rows = count, width = row_width; }
  // Makes them ready: x_i = row_at(i).
  template <typename RowAt>
  void set_rows(RowAt row_at) {
    for (std::uint32_t i = 0; i < rows; ++i) {
      at[i] = row_at(i);
      if (operands == Operands::kInt16) row_scales[i] = quantise_tile_row(at[i], width, shorts_of(i), sums_of(i));
    }
  }
  std::int16_t* shorts_of(std::uint32_t row) const { return shorts + row * std::size_t(width + kShortPadding); }
  float* sums_of(std::uint32_t row) const { return sums + row * std::size_t(width / LILY_GROUP_SIZE); }

  Operands operands;
  std::uint32_t width, rows;  // of the operand
  const float** at;           // [kGemmRows]
  float* product[2];          // [kGemmRows][kGemmColumns]; the second for gate and up

  float* panel = nullptr;   // [column / kTileColumns][k][column % kTileColumns]
  float* sliver = nullptr;  // [kTileRows][kSliverStride]

  std::int16_t* shorts = nullptr;  // [rows][width + kShortPadding], in the order of quantise_tile_row
  float* sums = nullptr;           // [rows][width / 64]
  float* row_scales = nullptr;     // [rows]
  Vs* short_panel = nullptr;       // [k / 2][2]: kLanes columns times two neighbours
  float* scales = nullptr;         // [group][kTileColumns]
  float* biases = nullptr;         // likewise
};

// Matrix `matrix` of the stack of [rows, columns] matrices bound from buffer `index` on.
static inline Weight stacked_weight(const KernelCall& call, int index, std::uint32_t matrix, std::uint32_t rows,
                                    std::uint32_t columns) {
  const Weight w = weight_at(call, index);
  const std::size_t groups = std::size_t(matrix) * rows * (columns / LILY_GROUP_SIZE);
  const std::size_t pair_bytes = groups * (is_wide(call.format) ? sizeof(float) : sizeof(std::uint16_t));
  return {w.codes + groups * group_bytes(call.format), w.scales + pair_bytes, w.biases + pair_bytes};
}

template <Format kFormat>
static inline void gemm_floats(const Weight& w, std::uint32_t n0, std::uint32_t columns, const GemmScratch& s,
                               float* product) {
  for (std::uint32_t k0 = 0; k0 < s.width; k0 += kGemmDepth) {
    const std::uint32_t depth = std::min(s.width - k0, kGemmDepth);
    unpack_floats<kFormat>(w, s.width, n0, columns, k0, depth, kGemmDepth, s.panel);
    for_row_blocks(s.rows, [&](std::uint32_t begin, std::uint32_t count) {
      for (std::uint32_t i = 0; i < count; ++i) {
        const float* x = s.at[begin + i] + k0;
        for (std::uint32_t k = 0; k < depth; k += kLanes) storef(s.sliver + i * kSliverStride + k, loadf(x + k));
      }
      // The next block's rows come while this one is multiplied: they are short and far apart, so no hardware foresees them.
      for (std::uint32_t i = begin + count; i < s.rows && i < begin + count + kTileRows; ++i) {
        const float* x = s.at[i] + k0;
        for (std::uint32_t k = 0; k < depth; k += 16) __builtin_prefetch(x + k);
      }
      for (std::uint32_t n = 0; n < columns; n += kTileColumns)
        product_tile_of(count, {s.sliver, kSliverStride, 1}, s.panel + n * kGemmDepth, kTileColumns, depth, k0 > 0,
                        product + begin * kGemmColumns + n, kGemmColumns);
    });
  }
}

// Rows of a register tile: twice as many accumulators, two vectors of the panel and a pair of x must fit the registers.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kShortTileRows = 8;
#else
constexpr int kShortTileRows = 4;
#endif

// Rows of a register tile of integer products.
struct ShortRows {
  const std::int16_t* shorts;
  std::size_t stride;
  const float* sums;
  std::size_t sums_stride;
};

// c = x Wᵀ, or c += x Wᵀ, over `groups` groups of the panel, without the rows' scales. The integer sums of one group are exact.
template <int kRows, typename Panel, typename Prefetch>
static inline void short_tile(ShortRows x, const Panel& panel, const float* scales, const float* biases, std::uint32_t groups,
                              bool accumulate, float* c, Prefetch& prefetch) {
  for (std::uint32_t group = 0; group < groups; ++group) {
    prefetch();
    Vi acc[kRows][2] = {};
    panel.for_pairs(group, [&](std::uint32_t k, Vs w0, Vs w1) {
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        const Vs pair = (Vs)splati(load<std::int32_t>(x.shorts + i * x.stride + k));
        acc[i][0] = dot_pairs(acc[i][0], w0, pair);
        acc[i][1] = dot_pairs(acc[i][1], w1, pair);
      }
    });
    x.shorts += LILY_GROUP_SIZE;
    const bool first = group == 0 && !accumulate;
    for (int half = 0; half < 2; ++half) {
      const Vf scale = loadf(scales + half * kLanes), bias = loadf(biases + half * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        float* to = c + i * kGemmColumns + half * kLanes;
        const Vf before = first ? Vf{} : loadf(to);
        storef(to, before + bias * x.sums[i * x.sums_stride] + scale * to_float(acc[i][half]));
      }
    }
    ++x.sums, scales += kTileColumns, biases += kTileColumns;
  }
}

template <int kRows = kShortTileRows, typename Panel, typename Prefetch>
static inline void short_tile_of(std::uint32_t rows, ShortRows x, const Panel& panel, const float* scales, const float* biases,
                                 std::uint32_t groups, bool accumulate, float* c, Prefetch& prefetch) {
  if constexpr (kRows > 1) {
    if (rows < std::uint32_t(kRows))
      return short_tile_of<kRows - 1>(rows, x, panel, scales, biases, groups, accumulate, c, prefetch);
  }
  short_tile<kRows>(x, panel, scales, biases, groups, accumulate, c, prefetch);
}

template <Format kFormat>
static inline void gemm_shorts(const Weight& w, std::uint32_t n0, std::uint32_t columns, const GemmScratch& s, float* product) {
  constexpr std::size_t kPair = is_wide(kFormat) ? sizeof(float) : sizeof(std::uint16_t);
  const std::uint32_t row_groups = s.width / LILY_GROUP_SIZE;
  for (std::uint32_t n = 0; n < columns; n += kTileColumns) {
    unpack_pairs<kFormat>(w.scales, row_groups, n0 + n, n0 + columns, s.scales);
    unpack_pairs<kFormat>(w.biases, row_groups, n0 + n, n0 + columns, s.biases);
    // While these rows are multiplied the next ones come from memory, evenly over the groups of all row blocks.
    const std::size_t next = std::size_t(n0 + n + kTileColumns) * row_groups;
    const std::uint32_t turns = (s.rows + kShortTileRows - 1) / kShortTileRows * row_groups;
    auto ahead = [&](const void* component, std::size_t group_bytes) {
      const std::size_t bytes = kTileColumns * row_groups * group_bytes;
      return Ahead{static_cast<const char*>(component) + next * group_bytes, (bytes + turns - 1) / turns};
    };
    Ahead codes = ahead(w.codes, group_bytes(kFormat)), scales = ahead(w.scales, kPair), biases = ahead(w.biases, kPair);
    auto prefetch = [&] { codes.advance(), scales.advance(), biases.advance(); };
    for (std::uint32_t k0 = 0; k0 < s.width; k0 += kGemmShortDepth) {
      const std::uint32_t depth = std::min(s.width - k0, kGemmShortDepth), group0 = k0 / LILY_GROUP_SIZE;
      for_row_blocks<kShortTileRows>(s.rows, [&](std::uint32_t begin, std::uint32_t count) {
        const ShortRows x = {s.shorts_of(begin) + k0, s.width + kShortPadding, s.sums_of(begin) + group0, row_groups};
        auto multiply = [&](const auto& panel) {
          short_tile_of(count, x, panel, s.scales + group0 * kTileColumns, s.biases + group0 * kTileColumns,
                        depth / LILY_GROUP_SIZE, k0 > 0, product + begin * kGemmColumns + n, prefetch);
        };
        if (begin == 0) {
          multiply(FreshPanel<kFormat>(w, s.width, n0 + n, n0 + columns, k0, s.short_panel));
        } else {
          multiply(ShortPanel{s.short_panel});
        }
      });
    }
    for (std::uint32_t i = 0; i < s.rows; ++i)
      for (int half = 0; half < 2; ++half) {
        float* to = product + i * kGemmColumns + n + half * kLanes;
        storef(to, poisoned(s.row_scales[i] * loadf(to)));
      }
  }
}

// product[i, n - n0] = x_i · W_n for the operand's rows and n in [n0, n0 + columns), columns <= kGemmColumns.
static inline void gemm(Format format, const Weight& w, std::uint32_t n0, std::uint32_t columns, const GemmScratch& s,
                        float* product) {
  with_format(format, [&]<Format kFormat>() {
    (s.operands == Operands::kInt16 ? gemm_shorts<kFormat> : gemm_floats<kFormat>)(w, n0, columns, s, product);
  });
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
    const std::uint32_t columns = t.x1 - t.x0;
    scratch.hold(t.y1 - t.y0, width);
    if (!is_ready(call, t.y0 + 1)) scratch.set_rows([&](std::uint32_t i) { return x + std::size_t(t.y0 + i) * width; });
    gemm(call.format, w, t.x0, columns, scratch, scratch.product[0]);
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
static inline void gemm_gate_up(Format format, const Weight& gate, const Weight& up, std::uint32_t n0, std::uint32_t columns,
                                const GemmScratch& scratch, float* to, std::size_t to_row) {
  gemm(format, gate, n0, columns, scratch, scratch.product[0]);
  gemm(format, up, n0, columns, scratch, scratch.product[1]);
  for (std::uint32_t i = 0; i < scratch.rows; ++i)
    swiglu(scratch.product[0] + i * kGemmColumns, scratch.product[1] + i * kGemmColumns, columns, to + i * to_row);
}

}  // namespace lily::cpu::LILY_ISA
