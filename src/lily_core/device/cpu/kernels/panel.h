// Panels of a weight: some of its rows, as columns of lanes, unpacked for products with many rows of activations.
#pragma once

#include "device/cpu/kernels/product.h"
#include "device/cpu/kernels/quant.h"

namespace lily::cpu::LILY_ISA {

// Where rows [n, n + kLanes) of a weight's component lie; those past the last row repeat it.
struct RowPlaces {
  RowPlaces(const void* component, std::size_t row_bytes, std::size_t offset, std::uint32_t n, std::uint32_t end) {
    for (std::uint32_t lane = 0; lane < std::uint32_t(kLanes); ++lane)
      at[lane] = reinterpret_cast<const std::uint8_t*>(component) + (n + lane < end ? n + lane : end - 1) * row_bytes + offset;
  }
  const std::uint8_t* at[kLanes];
};

// words[j]: word `offset` / 4 + j of each row, 4 of them.
static inline void transpose_words(const RowPlaces& rows, std::size_t offset, Vi* words) {
  constexpr int kStride = 4;
  Vi v[4];
  for (int i = 0; i < 4; ++i) v[i] = load_quarters(rows.at + i, kStride, offset);
  const Vi low01 = zip_low32(v[0], v[1]), low23 = zip_low32(v[2], v[3]);
  const Vi high01 = zip_high32(v[0], v[1]), high23 = zip_high32(v[2], v[3]);
  words[0] = zip_low64(low01, low23);
  words[1] = zip_high64(low01, low23);
  words[2] = zip_low64(high01, high23);
  words[3] = zip_high64(high01, high23);
}

// 8 bfloat16 numbers of each row: to[g * stride] is number g of every row.
static inline void transpose_bf16(const RowPlaces& rows, std::size_t offset, float* to, std::size_t stride) {
  constexpr int kStride = 4;
  Vi v[4];
  for (int i = 0; i < 4; ++i) v[i] = load_quarters(rows.at + i, kStride, offset);
  const Vi zips[2][2] = {{zip_low16(v[0], v[1]), zip_low16(v[2], v[3])}, {zip_high16(v[0], v[1]), zip_high16(v[2], v[3])}};
  for (int i = 0; i < 2; ++i) {
    const Vi pairs[2] = {zip_low32(zips[i][0], zips[i][1]), zip_high32(zips[i][0], zips[i][1])};
    for (int j = 0; j < 2; ++j) {
      storef(to + (4 * i + 2 * j) * stride, (Vf)zip_low16(Vi{}, pairs[j]));
      storef(to + (4 * i + 2 * j + 1) * stride, (Vf)zip_high16(Vi{}, pairs[j]));
    }
  }
}

// Scales or biases of the kTileColumns rows from n on, none behind `end`: to[group][row].
template <Format kFormat>
static inline void unpack_pairs(const std::byte* pairs, std::uint32_t groups, std::uint32_t n, std::uint32_t end, float* to) {
  constexpr std::size_t kBytes = is_wide(kFormat) ? sizeof(float) : sizeof(std::uint16_t);
  for (int half = 0; half < 2; ++half, to += kLanes) {
    const RowPlaces rows(pairs, groups * kBytes, 0, n + half * kLanes, end);
    std::uint32_t group = 0;
    if constexpr (!is_wide(kFormat))
      for (; group + 8 <= groups; group += 8) transpose_bf16(rows, group * kBytes, to + group * kTileColumns, kTileColumns);
    for (; group < groups; ++group)
      for (int lane = 0; lane < kLanes; ++lane)
        to[group * kTileColumns + lane] = pair_value<kFormat>(reinterpret_cast<const std::byte*>(rows.at[lane]), group);
  }
}

// Rows [n0, n0 + columns) of the weight, elements [k0, k0 + depth) of each, as floats:
// panel[column / kTileColumns][k of panel_depth][column % kTileColumns].
template <Format kFormat>
static inline void unpack_floats(const Weight& w, std::uint32_t width, std::uint32_t n0, std::uint32_t columns, std::uint32_t k0,
                                 std::uint32_t depth, std::uint32_t panel_depth, float* panel) {
  constexpr int kBits = is_4_bit(kFormat) ? 4 : 8, kCodes = 32 / kBits, kWords = LILY_GROUP_SIZE / kCodes;
  const std::size_t row_bytes = std::size_t(width) * kBits / 8, groups_a_row = width / LILY_GROUP_SIZE;
  for (std::uint32_t n = 0; n < columns; n += kLanes) {
    float* to = panel + std::size_t(n / kTileColumns) * kTileColumns * panel_depth + n % kTileColumns;
    const RowPlaces rows(w.codes, row_bytes, std::size_t(k0) * kBits / 8, n0 + n, n0 + columns);
    for (std::uint32_t group = 0; group < depth / LILY_GROUP_SIZE; ++group) {
      float scales[kLanes], biases[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        const std::size_t row = n0 + n + lane < n0 + columns ? n0 + n + lane : n0 + columns - 1;
        const std::size_t pair = row * groups_a_row + k0 / LILY_GROUP_SIZE + group;
        scales[lane] = pair_value<kFormat>(w.scales, pair);
        biases[lane] = pair_value<kFormat>(w.biases, pair);
      }
      const Vf scale = loadf(scales), bias = loadf(biases);
      for (int i = 0; i < kWords; i += 4) {
        Vi words[4];
        transpose_words(rows, (std::size_t(group) * kWords + i) * 4, words);
        for (const Vi& word : words)
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

// kTileColumns rows of a weight as 16-bit integers, codes only, in pairs of neighbours: [pair][vector of kLanes columns]. Of 8
// codes the pairs are (0, 4), (1, 5), (2, 6), (3, 7): what one shift and one mask make of a word of 4-bit codes.
struct ShortPanel {
  const Vs* at;

  // use(k, first vector, second vector) for the pairs of a group; k counts the elements of its rows.
  template <typename Use>
  void for_pairs(std::uint32_t group, Use use) const {
    const Vs* pair = at + group * LILY_GROUP_SIZE;
    for (std::uint32_t k = 0; k < LILY_GROUP_SIZE; k += 2, pair += 2) use(k, pair[0], pair[1]);
  }
};

// The same out of the weight's own words, kept for a ShortPanel on the way: the unpacking hides behind the first products.
template <Format kFormat>
class FreshPanel {
 public:
  // Rows from n on, none behind `end`, elements from k0 on.
  FreshPanel(const Weight& w, std::uint32_t width, std::uint32_t n, std::uint32_t end, std::uint32_t k0, Vs* panel)
      : rows_{{w.codes, row_bytes(width), row_bytes(k0), n, end}, {w.codes, row_bytes(width), row_bytes(k0), n + kLanes, end}},
        panel_(panel) {}

  template <typename Use>
  void for_pairs(std::uint32_t group, Use use) const {
    Vs* pair = panel_ + group * LILY_GROUP_SIZE;
    constexpr std::uint32_t kBits = is_4_bit(kFormat) ? 4 : 8, kElements = 128 / kBits;  // of 16 bytes of a row
    for (std::uint32_t k = 0; k < LILY_GROUP_SIZE; k += kElements) {
      Vi words[2][4];
      for (int half = 0; half < 2; ++half) transpose_words(rows_[half], row_bytes(group * LILY_GROUP_SIZE + k), words[half]);
#pragma GCC unroll 16
      for (std::uint32_t i = 0; i < kElements / 2; ++i, pair += 2) {
        for (int half = 0; half < 2; ++half) pair[half] = codes(words[half], i);
        use(k + 2 * i, pair[0], pair[1]);
      }
    }
  }

 private:
  static constexpr std::size_t row_bytes(std::uint32_t elements) {
    return std::size_t(elements) * (is_4_bit(kFormat) ? 4 : 8) / 8;
  }

  // Pair `i` of the words.
  static Vs codes(const Vi (&words)[4], std::uint32_t i) {
    const int shift = (is_4_bit(kFormat) ? 4 : 8) * (i % 4);
    if constexpr (is_4_bit(kFormat)) {
      return (Vs)((words[i / 4] >> shift) & 0x000f000f);
    } else {
      return (Vs)(((words[i / 4 * 2] >> shift) & 0xff) | (((words[i / 4 * 2 + 1] >> shift) & 0xff) << 16));
    }
  }

  RowPlaces rows_[2];
  Vs* panel_;
};

// Brings a stretch of memory into the caches, `step` bytes a turn: too much to ask for at once, too short for the hardware to
// foresee. What lies behind the weight's last row is not touched by a prefetch.
struct Ahead {
  const char* at;
  std::size_t step;

  void advance() {
    for (const char* line = at; line < at + step; line += 64) __builtin_prefetch(line);
    at += step;
  }
};

}  // namespace lily::cpu::LILY_ISA
