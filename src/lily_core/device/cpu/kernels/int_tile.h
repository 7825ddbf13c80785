// The register tile of integer products: a few rows of activations times kTileColumns rows of a weight, whose codes lie in a
// panel. Both are words of 32 bits that hold neighbours along k: two, or with dot products of bytes four, and then the integers
// are split into an upper and a lower byte. One accumulator adds both: the upper ones' products come first, then a shift, then
// those of the lower ones. With AMX each has an accumulator, and they are added last.
//
// One of amx_tile.h, vnni_tile.h, byte_tile.h and short_tile.h is compiled, by instruction set: it says how integers and panels
// are laid out, write_group writes the integers, and IntSums multiplies them.
#pragma once

#include <cstddef>

#include "device/cpu/kernels/amx_tile.h"
#include "device/cpu/kernels/byte_tile.h"
#include "device/cpu/kernels/product.h"
#include "device/cpu/kernels/short_tile.h"
#include "device/cpu/kernels/shorts.h"
#include "device/cpu/kernels/vnni_tile.h"

namespace lily::cpu::LILY_ISA {

#if !defined(LILY_AMX)
static inline void set_up_tiles() {}
static inline void release_tiles() {}
#endif

constexpr int kGroupTurns = LILY_GROUP_SIZE / 2 / 8;  // a turn multiplies 8 words of activations
static_assert(kGroupTurns == 4);  // with AMX the first one starts all products, and the last one takes them
// Vectors of a group of the panel, with what pairs of codes are corrected by.
constexpr int panel_vectors(bool is_4_bit) { return code_vectors(is_4_bit) + (has_pairs(is_4_bit) ? 2 : 0); }

// A group of rows of activations: the integers of each, the sum of each (float), with pairs what each is corrected by (int32).
constexpr std::size_t kRowGroupBytes = kRowBytes + sizeof(float) + (has_pairs(true) ? sizeof(std::int32_t) : 0);

// Quantises row `row` of `rows` for the tile, `width` numbers: to q, group after group. Returns the row's scale.
static inline float quantise_tile_row(const float* x, std::uint32_t width, bool is_4_bit, std::uint32_t row, std::uint32_t rows,
                                      std::byte* q) {
  const RowScale scale(x, width, largest_integer(is_4_bit));
  for (std::uint32_t group = 0; group < width / LILY_GROUP_SIZE; ++group, x += LILY_GROUP_SIZE, q += rows * kRowGroupBytes) {
    Vi integers[LILY_GROUP_SIZE / kLanes], total = {};
#pragma GCC unroll 4
    for (int i = 0; i < int(LILY_GROUP_SIZE) / kLanes; ++i) {
      integers[i] = quantised(x + i * kLanes, scale.inverse);
      total = add_wrapping(total, integers[i]);
    }
    write_group(integers, is_4_bit, row, rows, q);
    reinterpret_cast<float*>(q + rows * kRowBytes)[row] = sum(to_float(total));
  }
  return scale.scale;
}

// c = x Wᵀ, or c += x Wᵀ, over `groups` groups of the panel, without the rows' scales: c [kRows][kTileColumns], scales and biases
// [group][kTileColumns]. The integer sums of one group are exact. `turn` is called kGroupTurns times a group, for work that hides
// behind the products.
template <int kRows, bool kIs4Bit, typename Turn>
static inline void int_tile(const std::byte* x, const Vi* panel, const float* scales, const float* biases, std::uint32_t groups,
                            bool accumulate, float* c, Turn& turn) {
  constexpr int kPartTurns = kGroupTurns / kIntegerParts;
  for (std::uint32_t group = 0; group < groups; ++group) {
    const auto* sums = reinterpret_cast<const float*>(x + kRows * kRowBytes);
    IntSums<kRows, kIs4Bit> acc;
#pragma GCC unroll 2
    for (int part = 0; part < kIntegerParts; ++part) {
      if constexpr (kIntegerParts == 2)
        if (part == 1) acc.shift();
#pragma GCC unroll 1
      for (int i = 0; i < kPartTurns; ++i) {
        turn();
        acc.multiply(panel + i * (code_vectors(kIs4Bit) / kPartTurns), x, part * kPartTurns + i);
        reload();
      }
    }
    if constexpr (has_pairs(kIs4Bit))
      acc.correct(panel + code_vectors(kIs4Bit), reinterpret_cast<const std::int32_t*>(sums + kRows));
    const bool is_first = group == 0 && !accumulate;
    for (int half = 0; half < 2; ++half) {
      const Vf scale = loadf(scales + half * kLanes), bias = loadf(biases + half * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        float* to = c + i * kTileColumns + half * kLanes;
        const Vf before = is_first ? Vf{} : loadf(to);
        storef(to, before + bias * sums[i] + scale * to_float(acc.row(i, half)));
      }
    }
    x += kRows * kRowGroupBytes, panel += panel_vectors(kIs4Bit), scales += kTileColumns, biases += kTileColumns;
  }
}

// The tile of `rows` rows, 1 to kIntTileRows.
template <bool kIs4Bit, int kRows = kIntTileRows, typename Turn>
static inline void int_tile_of(std::uint32_t rows, const std::byte* x, const Vi* panel, const float* scales, const float* biases,
                               std::uint32_t groups, bool accumulate, float* c, Turn& turn) {
  if constexpr (kRows > 1) {
    if (rows < std::uint32_t(kRows))
      return int_tile_of<kIs4Bit, kRows - 1>(rows, x, panel, scales, biases, groups, accumulate, c, turn);
  }
  int_tile<kRows, kIs4Bit>(x, panel, scales, biases, groups, accumulate, c, turn);
}

}  // namespace lily::cpu::LILY_ISA
