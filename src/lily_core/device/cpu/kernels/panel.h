// Panels of a weight: some of its rows, as columns of lanes, unpacked for products with many rows of activations.
#pragma once

#include "device/cpu/kernels/byte_dots.h"
#include "device/cpu/kernels/int_tile.h"
#include "device/cpu/kernels/product.h"
#include "device/cpu/kernels/quant.h"

namespace lily::cpu::LILY_ISA {

// Where rows [n, n + kLanes) of a weight's component lie; those past the last row repeat it.
struct RowPlaces {
  RowPlaces() = default;
  RowPlaces(const void* component, std::uint32_t row_bytes, std::size_t offset, std::uint32_t n, std::uint32_t end) {
    const std::uint32_t first = std::min(n, end - 1), last = end - 1 - first;
    const std::uint8_t* row = static_cast<const std::uint8_t*>(component) + std::size_t(first) * row_bytes + offset;
    for (std::uint32_t lane = 0; lane < std::uint32_t(kLanes); ++lane) at[lane] = row + std::min(lane, last) * row_bytes;
  }
  const std::uint8_t* at[kLanes];
};

// In each quarter words[j] gets word j of v[0], v[1], v[2], v[3].
static inline void interleave_words(const Vi (&v)[4], Vi* words) {
  const Vi low01 = zip_low32(v[0], v[1]), low23 = zip_low32(v[2], v[3]);
  const Vi high01 = zip_high32(v[0], v[1]), high23 = zip_high32(v[2], v[3]);
  words[0] = zip_low64(low01, low23);
  words[1] = zip_high64(low01, low23);
  words[2] = zip_low64(high01, high23);
  words[3] = zip_high64(high01, high23);
}

// words[j]: word `offset` / 4 + j of each row, 4 of them.
static inline void transpose_words(const RowPlaces& rows, std::size_t offset, Vi* words) {
  constexpr int kStride = 4;
  Vi v[4];
  for (int i = 0; i < 4; ++i) v[i] = load_quarters(rows.at + i, kStride, offset);
  interleave_words(v, words);
}

// The same with as many words as a unit of a panel has.
#if defined(__AVX512F__)
constexpr int kUnitWords = 8;
static inline void transpose_unit(const RowPlaces& rows, std::size_t offset, Vi (&words)[kUnitWords]) {
  Vi of_rows[2][4];  // words (0, 4), (1, 5), (2, 6), (3, 7), each of four rows, then of the next four
  for (int eight = 0; eight < 2; ++eight) {
    const std::uint8_t* const* at = rows.at + 8 * eight;
    Vi v[4];
    for (int i = 0; i < 4; ++i)
      v[i] = (Vi)_mm512_inserti64x4(_mm512_castsi256_si512(load<__m256i>(at[i] + offset)), load<__m256i>(at[i + 4] + offset), 1);
    interleave_words(v, of_rows[eight]);
  }
  for (int j = 0; j < 4; ++j) {
    words[j] = (Vi)_mm512_shuffle_i32x4((__m512i)of_rows[0][j], (__m512i)of_rows[1][j], 0x88);      // quarters 0 and 2 of both
    words[4 + j] = (Vi)_mm512_shuffle_i32x4((__m512i)of_rows[0][j], (__m512i)of_rows[1][j], 0xdd);  // 1 and 3
  }
}
#else
constexpr int kUnitWords = 4;
static inline void transpose_unit(const RowPlaces& rows, std::size_t offset, Vi (&words)[kUnitWords]) {
  transpose_words(rows, offset, words);
}
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
// words: 8 bytes from `offset` on of rows 0 and 1, of rows 2 and 3, and the next 8 bytes of them.
static inline void pair_rows(const RowPlaces& rows, std::size_t offset, Vi (&words)[kUnitWords]) {
  Vi v[4];
  for (int i = 0; i < 4; ++i) v[i] = load<Vi>(rows.at[i] + offset);
  words[0] = zip_low64(v[0], v[1]), words[1] = zip_low64(v[2], v[3]);
  words[2] = zip_high64(v[0], v[1]), words[3] = zip_high64(v[2], v[3]);
}
#endif

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
    const RowPlaces rows(w.codes, std::uint32_t(row_bytes), std::size_t(k0) * kBits / 8, n0 + n, n0 + columns);
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

// Unpacks the codes of kTileColumns rows of a weight for int_tile, a unit at a time, so that it hides behind the products with
// the panel before: [word][vector of kLanes rows], or with i8mm [8 elements][vector of 2 rows]. With each unit it asks memory for
// as many bytes of rows that come later, in the order in which they lie: hardware does not foresee them.
template <Format kFormat>
class PanelWriter {
 public:
  PanelWriter() = default;  // nothing to do
  // Rows from n on, none behind `end`, `groups` groups from group0 on. What comes later starts with row later_n of `later`, and
  // may lie behind its last row: no prefetch faults.
  PanelWriter(const Weight& w, std::uint32_t row_groups, std::uint32_t n, std::uint32_t end, std::uint32_t group0,
              std::uint32_t groups, Vi* panel, const Weight& later, std::uint32_t later_n)
      : rows_{{w.codes, row_groups * kGroupBytes, group0 * kGroupBytes, n, end},
              {w.codes, row_groups * kGroupBytes, group0 * kGroupBytes, n + kLanes, end}},
        panel_(panel),
        units_(groups * kGroupUnits) {
    const std::size_t first = std::size_t(later_n) * row_groups + group0 * kTileColumns;  // as a group
    codes_ahead_ = later.codes + first * kGroupBytes;
    scales_ahead_ = later.scales + first * kPairBytes;
    biases_ahead_ = later.biases + first * kPairBytes;
  }

  // The next unit: kUnitWords words of each of kLanes rows.
  __attribute__((always_inline)) void write_unit() {
    const std::uint32_t half = unit_ % 2, step = unit_ / 2;
    for (std::uint32_t i = 0; i < kUnitBytes; i += 64) __builtin_prefetch(codes_ahead_ + unit_ * kUnitBytes + i);
    __builtin_prefetch(scales_ahead_ + unit_ * kUnitPairBytes), __builtin_prefetch(biases_ahead_ + unit_ * kUnitPairBytes);
    Vi words[kUnitWords];
#if defined(__ARM_FEATURE_MATMUL_INT8)
    pair_rows(rows_[half], step * kUnitWords * 4, words);
    Vi* to = panel_ + step * kStepVectors + 2 * half;
#pragma GCC unroll 8
    for (int i = 0; i < kUnitVectors; ++i) to[i / 2 * 4 + i % 2] = codes(words, i);
#else
    transpose_unit(rows_[half], step * kUnitWords * 4, words);
    Vi* to = panel_ + step * kStepVectors + half;
#pragma GCC unroll 32
    for (int i = 0; i < kUnitVectors; ++i) to[2 * i] = codes(words, i);
#endif
#if defined(LILY_PAIRS)
    if constexpr (has_pairs(kIs4Bit)) {  // a unit is a group of its rows, and behind its codes lies what they are corrected by
      Vi sum = {};
#pragma GCC unroll 4
      for (int i = 0; i < kUnitWords; i += 2) sum = add_codes_correction(sum, even_codes(words[i]), even_codes(words[i + 1]));
      to[2 * kUnitVectors] = whole_correction(sum);
    }
#endif
    ++unit_;
  }
  void write_rest() {
    while (unit_ < units_) write_unit();
  }
  std::uint32_t units_left() const { return units_ - unit_; }

 private:
  static constexpr bool kIs4Bit = is_4_bit(kFormat);
  static constexpr int kBits = kIs4Bit ? 4 : 8;
  static constexpr std::uint32_t kUnitBytes = kUnitWords * 4 * kLanes;
  static constexpr std::uint32_t kGroupBytes = group_bytes(kFormat);
  static constexpr std::size_t kPairBytes = is_wide(kFormat) ? sizeof(float) : sizeof(std::uint16_t);
  static constexpr std::uint32_t kGroupUnits = 2 * kGroupBytes / (kUnitWords * 4);
  static constexpr int kUnitVectors = code_vectors(kIs4Bit) / kGroupUnits;
  static constexpr int kStepVectors = panel_vectors(kIs4Bit) / (kGroupUnits / 2);  // of a unit of either half
  static constexpr std::size_t kUnitPairBytes = kTileColumns * kPairBytes / kGroupUnits;

  // Vector `i` of a unit.
  static Vi codes(const Vi (&words)[kUnitWords], int i) {
#if defined(__AVX512VNNI__) && !defined(LILY_AMX)
    return words[i];
#elif defined(__ARM_FEATURE_MATMUL_INT8)
    return kIs4Bit ? (words[i / 4 * 2 + i % 2] >> (4 * (i / 2 % 2))) & 0x0f0f0f0f : words[i];
#elif defined(__ARM_FEATURE_DOTPROD)
    if constexpr (!kIs4Bit) return words[i] ^ std::int32_t(0x01010101u * kCodeOffset<kFormat>);
#endif
    if constexpr (kIntegerParts == 2) return kIs4Bit ? (words[i / 2] >> (4 * (i % 2))) & 0x0f0f0f0f : words[i];
    const int shift = kBits * (i % 4);
    if constexpr (kIs4Bit) return (words[i / 4] >> shift) & 0x000f000f;
    return ((words[i / 4 * 2] >> shift) & 0xff) | (((words[i / 4 * 2 + 1] >> shift) & 0xff) << 16);
  }

  RowPlaces rows_[2];
  Vi* panel_ = nullptr;
  std::uint32_t units_ = 0, unit_ = 0;
  const std::uint8_t* codes_ahead_ = nullptr;
  const std::byte *scales_ahead_ = nullptr, *biases_ahead_ = nullptr;
};

}  // namespace lily::cpu::LILY_ISA
