#include "device/cpu/kernels/matvec.h"

#include <type_traits>

#include "device/cpu/kernels/byte_dots.h"
#include "device/cpu/kernels/norm.h"
#include "device/cpu/kernels/shorts.h"

namespace lily::cpu::LILY_ISA {

constexpr std::uint32_t codes_in_word(Format format) { return is_4_bit(format) ? 8 : 4; }
constexpr std::uint32_t block_codes(Format format) { return kLanes * codes_in_word(format); }

Operand::Operand(const KernelCall& call, Scratch& scratch, Format weight_format, std::uint32_t num_rows,
                 std::uint32_t num_columns)
    : operands(call.operands),
      format(weight_format),
      rows(num_rows),
      columns(num_columns),
      padded((columns + block_codes(format) - 1) / block_codes(format) * block_codes(format)),
      sums(scratch.take<float>(std::size_t(rows) * (columns / LILY_GROUP_SIZE))),
      values(operands == Operands::kFloat32 ? scratch.take<float>(std::size_t(rows) * columns) : nullptr),
      shorts(operands == Operands::kInt16 ? scratch.take<std::int16_t>(std::size_t(rows) * padded) : nullptr),
      ordered(operands == Operands::kInt16 ? scratch.take<std::int16_t>(padded) : nullptr),
      scales(operands == Operands::kInt16 ? scratch.take<float>(rows) : nullptr) {}

// From the order of the row to that of its blocks, or groups of bytes. `from` is padded with zeros.
static void arrange(const std::int16_t* from, std::uint32_t padded, Format format, std::int16_t* to) {
#if defined(__ARM_FEATURE_DOTPROD) || defined(__AVX512VNNI__)
  split_bytes(from, padded, format, to);
#else
  const std::uint32_t codes = codes_in_word(format), shifts = codes / 2;
  for (std::uint32_t word = 0; word < padded / codes; ++word, from += codes) {
    std::int16_t* block = to + word / kLanes * kLanes * codes + word % kLanes * 2;
    for (std::uint32_t j = 0; j < shifts; ++j) {
      block[j * 2 * kLanes] = from[j];
      block[j * 2 * kLanes + 1] = from[j + shifts];
    }
  }
#endif
}

void Operand::set_row(std::uint32_t row, const float* x) {
  if (operands == Operands::kInt16) {
    scales[row] = quantise_row(x, columns, ordered, sums_of(row));
    std::memset(ordered + columns, 0, (padded - columns) * sizeof(std::int16_t));
    return arrange(ordered, padded, format, shorts_of(row));
  }
  float* to = values_of(row);
  for (std::uint32_t group = 0; group < columns / LILY_GROUP_SIZE; ++group, x += LILY_GROUP_SIZE, to += LILY_GROUP_SIZE) {
    Vf total = {};
    for (std::uint32_t i = 0; i < LILY_GROUP_SIZE; i += kLanes) total += loadf(x + i);
    sums_of(row)[group] = sum(total);
    if (is_4_bit(format)) {
      for (std::uint32_t i = 0; i < LILY_GROUP_SIZE / 2; ++i) to[i] = x[2 * i], to[LILY_GROUP_SIZE / 2 + i] = x[2 * i + 1];
    } else {
      std::memcpy(to, x, LILY_GROUP_SIZE * sizeof(float));
    }
  }
}

void Operand::set_rows(const float* x) {
  for (std::uint32_t r = 0; r < rows; ++r) set_row(r, x + std::size_t(r) * columns);
}

NormedOperand::NormedOperand(const KernelCall& call, Scratch& scratch)
    : Operand(call, scratch, call.format, args_of<RowsArgs>(call).rows, call.model->hidden_size),
      eps(call.model->rms_norm_eps),
      normed(scratch.take<float>(columns)) {}

void NormedOperand::set_normed_row(std::uint32_t row, const float* x, const float* gain) {
  norm_row(x, gain, columns, eps, normed);
  set_row(row, normed);
}

void set_normed_rows(const KernelCall& call, NormedOperand& x) {
  for (std::uint32_t r = 0; r < x.rows; ++r)
    x.set_normed_row(r, buffer<const float>(call, 0) + std::size_t(r) * x.columns, buffer<const float>(call, 1));
}

Operand normed_operand(const KernelCall& call) {
  NormedOperand x = scratch_of<NormedOperand>(call);
  if (!is_ready(call, 1)) set_normed_rows(call, x);
  return x;
}

// kRows weight rows times kProducts operand rows. Several rows at once hide the latency of the additions.
template <Format kFormat, int kRows, int kProducts>
static inline void dot_block(const Weight& w, std::size_t first, const Operand& x, const Product* products,
                             std::uint32_t y_index) {
  const std::uint32_t groups = x.columns / LILY_GROUP_SIZE;
  const std::uint8_t* codes = w.codes + first * groups * group_bytes(kFormat);
  const std::size_t row_bytes = std::size_t(groups) * group_bytes(kFormat);
  const float* values[kProducts];
  for (int p = 0; p < kProducts; ++p) values[p] = x.values_of(products[p].row);

  Vf acc[kRows][kProducts] = {};
  for (std::uint32_t group = 0; group < groups; ++group, codes += group_bytes(kFormat)) {
    Vf dot[kRows][kProducts] = {};
    const std::uint32_t base = group * LILY_GROUP_SIZE;
    // The hardware's prefetcher sees several short streams; the next block's rows are where they are expected to be.
    for (int r = 0; r < kRows; ++r) __builtin_prefetch(codes + (kRows + r) * row_bytes);
    if constexpr (is_4_bit(kFormat)) {
      for (std::uint32_t i = 0; i < LILY_GROUP_SIZE / 2; i += kLanes) {
        for (int r = 0; r < kRows; ++r) {
          const Vi pair = widen(codes + r * row_bytes + i);
          const Vf even = to_float(pair & 15), odd = to_float(pair >> 4);
          for (int p = 0; p < kProducts; ++p) {
            dot[r][p] += even * loadf(values[p] + base + i);
            dot[r][p] += odd * loadf(values[p] + base + LILY_GROUP_SIZE / 2 + i);
          }
        }
      }
    } else {
      for (std::uint32_t i = 0; i < LILY_GROUP_SIZE; i += kLanes)
        for (int r = 0; r < kRows; ++r) {
          const Vf code = to_float(widen(codes + r * row_bytes + i));
          for (int p = 0; p < kProducts; ++p) dot[r][p] += code * loadf(values[p] + base + i);
        }
    }
    for (int r = 0; r < kRows; ++r) {
      const Vf scale = splat(pair_value<kFormat>(w.scales, (first + r) * groups + group));
      for (int p = 0; p < kProducts; ++p) acc[r][p] += scale * dot[r][p];
    }
  }

  for (int r = 0; r < kRows; ++r) {
    const std::size_t pairs = (first + r) * groups;
    float rest[kProducts] = {};
    std::uint32_t group = 0;
    for (; group + kLanes <= groups; group += kLanes) {
      const Vf bias = pair_values<kFormat>(w.biases, pairs + group);
      for (int p = 0; p < kProducts; ++p) acc[r][p] += bias * loadf(x.sums_of(products[p].row) + group);
    }
    for (; group < groups; ++group) {
      const float bias = pair_value<kFormat>(w.biases, pairs + group);
      for (int p = 0; p < kProducts; ++p) rest[p] += bias * x.sums_of(products[p].row)[group];
    }
    for (int p = 0; p < kProducts; ++p) products[p].y[y_index + r] = poisoned(sum(acc[r][p]) + rest[p]);
  }
}

// How far ahead codes are asked for: hardware stops at the end of a page, and two pages cover the latency of memory.
constexpr std::size_t kPrefetchBytes = 8192;

// One weight row times kProducts operand rows of 16-bit integers. The codes of a weight's rows are one stretch of memory, and are
// read as one: hardware foresees that, and several rows at once, which share a page, it does not.
// A block of kLanes words spans two groups, one, or a part of one.
template <Format kFormat, int kProducts>
static inline void dot_shorts(const Weight& row, const Weight& ahead, const Operand& x, const Product* products,
                              Vf (&total)[kProducts]) {
  constexpr int kBits = 32 / codes_in_word(kFormat), kBlock = block_codes(kFormat);
  const std::uint32_t groups = x.columns / LILY_GROUP_SIZE;
  __builtin_prefetch(ahead.scales);
  __builtin_prefetch(ahead.biases);
  const std::int16_t* shorts[kProducts];
  for (int p = 0; p < kProducts; ++p) shorts[p] = x.shorts_of(products[p].row);

  auto add_block = [&](Vi (&dot)[kProducts], std::uint32_t block, Vi words) {
#if defined(__AVX512VNNI__)
    static_assert(kBlock >= int(LILY_GROUP_SIZE));  // nothing was added before
    for (int p = 0; p < kProducts; ++p) dot[p] = dot_words<kFormat>(words, shorts[p] + std::size_t(block) * kBlock);
#else
    constexpr std::int32_t kMask = kBits == 4 ? 0x000f000f : 0x00ff00ff;
    for (int j = 0; j < 16 / kBits; ++j) {
      const Vs code = (Vs)((words >> (kBits * j)) & kMask);
      for (int p = 0; p < kProducts; ++p)
        dot[p] = dot_pairs(dot[p], code, load<Vs>(shorts[p] + std::size_t(block) * kBlock + j * 2 * kLanes));
    }
#endif
  };
  auto offset_of = [&](std::uint32_t block) { return std::size_t(block) * kBlock * kBits / 8; };
  auto add_group = [&](Vi (&dot)[kProducts], std::uint32_t group) {
    const std::size_t offset = std::size_t(group) * group_bytes(kFormat);
#if defined(__ARM_FEATURE_DOTPROD)
    if (offset % 64 == 0) __builtin_prefetch(ahead.codes + offset);
    dot_group<kFormat>(row.codes + offset, shorts, group, dot);
#else
    for (std::uint32_t i = 0; i < LILY_GROUP_SIZE / kBlock; ++i)
      add_block(dot, group * (LILY_GROUP_SIZE / kBlock) + i, load<Vi>(row.codes + offset + offset_of(i)));
#endif
  };

  Vf acc[2][kProducts] = {};
  auto add_groups = [&](std::uint32_t group0, auto number) {
    const std::uint32_t count = number;  // a constant where it is worth it
    const Vf scales = pair_values_part<kFormat>(row.scales, group0, count);
    Vf biases = pair_values_part<kFormat>(row.biases, group0, count);
    if constexpr (kCodeOffset<kFormat> != 0) biases += float(kCodeOffset<kFormat>) * scales;
    for (int p = 0; p < kProducts; ++p) acc[0][p] += biases * load_part(x.sums_of(products[p].row) + group0, count);
    if constexpr (kBlock > int(LILY_GROUP_SIZE)) {
#pragma GCC unroll 8
      for (std::uint32_t i = 0; i + 1 < count; i += 2) {
        Vi dot[kProducts] = {};
        __builtin_prefetch(ahead.codes + offset_of((group0 + i) / 2));
        add_block(dot, (group0 + i) / 2, load<Vi>(row.codes + offset_of((group0 + i) / 2)));
        for (int p = 0; p < kProducts; ++p) acc[i / 2 % 2][p] += two_lanes(scales, i) * to_float(dot[p]);
      }
      if (count % 2) {
        Vi dot[kProducts] = {};
        add_block(dot, (group0 + count) / 2, load_half(row.codes + offset_of((group0 + count) / 2)));
        for (int p = 0; p < kProducts; ++p) acc[0][p] += two_lanes(scales, count - 1) * to_float(dot[p]);
      }
    } else {
#pragma GCC unroll 8
      for (std::uint32_t i = 0; i < count; ++i) {
        Vi dot[kProducts] = {};
        add_group(dot, group0 + i);
        for (int p = 0; p < kProducts; ++p) acc[i % 2][p] += scales[i] * to_float(dot[p]);
      }
    }
  };
  std::uint32_t group = 0;
  for (; group + kLanes <= groups; group += kLanes) add_groups(group, std::integral_constant<std::uint32_t, kLanes>());
  if (groups - group == kLanes / 2) {
    add_groups(group, std::integral_constant<std::uint32_t, kLanes / 2>());
  } else if (group < groups) {
    add_groups(group, groups - group);
  }
  for (int p = 0; p < kProducts; ++p) total[p] = acc[0][p] + acc[1][p];
}

// A weight's rows one after the other: its components at one of them.
template <Format kFormat>
struct RowCursor {
  RowCursor(const Rows& rows, std::uint32_t groups)
      : code_bytes(groups * group_bytes(kFormat)),
        pair_bytes(groups * (is_wide(kFormat) ? sizeof(float) : sizeof(std::uint16_t))),
        at{rows.w.codes + rows.first * code_bytes, rows.w.scales + rows.first * pair_bytes,
           rows.w.biases + rows.first * pair_bytes} {}

  void advance() { at.codes += code_bytes, at.scales += pair_bytes, at.biases += pair_bytes; }

  std::size_t code_bytes, pair_bytes;
  Weight at;
};

// Rows [begin, end) of the stretch.
template <Format kFormat, int kProducts>
static void dot_short_rows(const Stretch& stretch, std::uint32_t begin, std::uint32_t end, const Operand& x,
                           const Product* products) {
  constexpr std::uint32_t kRows = 4;
  const std::uint32_t groups = x.columns / LILY_GROUP_SIZE, row_bytes = groups * group_bytes(kFormat);
  const std::uint32_t distance = (kPrefetchBytes + row_bytes - 1) / row_bytes;
  auto cursor = [&](std::uint32_t i) {
    const Rows& part = i < stretch.count ? stretch.rows : stretch.next;
    return RowCursor<kFormat>({part.w, part.first + (i < stretch.count ? i : i - stretch.count)}, groups);
  };
  RowCursor<kFormat> row = cursor(begin), ahead = cursor(begin + distance);
  for (std::uint32_t i = begin; i < end; i += kRows) {
    const std::uint32_t rows = end - i < kRows ? end - i : kRows;
    Vf total[kRows][kProducts] = {};
    for (std::uint32_t r = 0; r < rows; ++r) {
      dot_shorts<kFormat, kProducts>(row.at, ahead.at, x, products, total[r]);
      row.advance(), ahead.advance();
      if (i + r + 1 + distance == stretch.count) ahead = cursor(stretch.count);
    }
    for (int p = 0; p < kProducts; ++p) {
      float sums[kRows];
      four_sums(total[0][p], total[1][p], total[2][p], total[3][p], sums);
      for (std::uint32_t r = 0; r < rows; ++r) products[p].y[i + r] = poisoned(x.scales[products[p].row] * sums[r]);
    }
  }
}

template <Format kFormat, int kProducts>
static void dot_rows(const Stretch& stretch, std::uint32_t begin, std::uint32_t end, const Operand& x, const Product* products) {
  constexpr int kRows = kProducts == 4 ? 2 : 4;  // as many accumulators as fit in 16 registers
  if (x.operands == Operands::kInt16) return dot_short_rows<kFormat, kProducts>(stretch, begin, end, x, products);
  const auto& [w, first] = stretch.rows;
  std::uint32_t i = begin;
  for (; i + kRows <= end; i += kRows) dot_block<kFormat, kRows, kProducts>(w, first + i, x, products, i);
  for (; i < end; ++i) dot_block<kFormat, 1, kProducts>(w, first + i, x, products, i);
}

void matvec(const Stretch& stretch, const Operand& x, const Product* products, std::uint32_t num_products) {
  with_format(x.format, [&]<Format kFormat>() {
    for (std::uint32_t begin = 0; begin < stretch.count; begin += kStripRows) {
      const std::uint32_t end = stretch.count - begin < kStripRows ? stretch.count : begin + kStripRows;
      std::uint32_t p = 0;
      auto run = [&]<int kProducts>() {
        dot_rows<kFormat, kProducts>(stretch, begin, end, x, products + p);
        p += kProducts;
      };
      while (p + 4 <= num_products) run.template operator()<4>();
      if (p + 2 <= num_products) run.template operator()<2>();
      if (p < num_products) run.template operator()<1>();
    }
  });
}

void matvec_add(const KernelCall& call, std::uint32_t first, std::uint32_t last, const Weight& w, const Operand& operand,
                float* x) {
  constexpr std::uint32_t kStrip = 32;
  const std::uint32_t width = call.model->hidden_size;
  float y[LILY_MAX_STEP_ROWS][kStrip];
  Product products[LILY_MAX_STEP_ROWS];
  for (std::uint32_t r = 0; r < operand.rows; ++r) products[r] = {r, y[r]};
  for (std::uint32_t tile = first; tile < last; ++tile) {
    const Tile t = tile_at(call, tile);
    for (std::uint32_t from = t.x0; from < t.x1; from += kStrip) {
      const std::uint32_t count = t.x1 - from < kStrip ? t.x1 - from : kStrip;
      matvec({{w, from}, count, {w, std::size_t(from) + count}}, operand, products, operand.rows);
      for (std::uint32_t r = 0; r < operand.rows; ++r)
        for (std::uint32_t i = 0; i < count; ++i) x[std::size_t(r) * width + from + i] += y[r][i];
    }
  }
}

void matvec_gate_up(const Weight& gate, const Weight& up, std::size_t first, std::uint32_t count, std::size_t next_first,
                    const Operand& x, const Product* products, std::uint32_t num_products) {
  float gated[LILY_MAX_STEP_ROWS][kGateUpColumns], upped[LILY_MAX_STEP_ROWS][kGateUpColumns];
  Product gates[LILY_MAX_STEP_ROWS] = {}, ups[LILY_MAX_STEP_ROWS] = {};
  for (std::uint32_t p = 0; p < num_products; ++p)
    gates[p] = {products[p].row, gated[p]}, ups[p] = {products[p].row, upped[p]};
  matvec({{gate, first}, count, {gate, next_first}}, x, gates, num_products);
  matvec({{up, first}, count, {up, next_first}}, x, ups, num_products);
  for (std::uint32_t p = 0; p < num_products; ++p) swiglu(gated[p], upped[p], count, products[p].y);
}

}  // namespace lily::cpu::LILY_ISA
