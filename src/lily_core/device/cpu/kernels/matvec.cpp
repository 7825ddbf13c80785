#include "device/cpu/kernels/matvec.h"

#include "device/cpu/kernels/norm.h"

namespace lily::cpu::LILY_ISA {

Operand::Operand(std::byte*& scratch, Format weight_format, std::uint32_t num_rows, std::uint32_t num_columns)
    : format(weight_format),
      rows(num_rows),
      columns(num_columns),
      values(take_floats(scratch, std::size_t(rows) * columns)),
      sums(take_floats(scratch, std::size_t(rows) * (columns / kGroup))) {}

std::size_t Operand::bytes(std::uint32_t rows, std::uint32_t columns) {
  return scratch_floats(std::size_t(rows) * columns) + scratch_floats(std::size_t(rows) * (columns / kGroup));
}

void Operand::set_row(std::uint32_t row, const float* x) {
  float* to = values_of(row);
  for (std::uint32_t group = 0; group < columns / kGroup; ++group, x += kGroup, to += kGroup) {
    Vf total = {};
    for (std::uint32_t i = 0; i < kGroup; i += kLanes) total += loadf(x + i);
    sums_of(row)[group] = sum(total);
    if (is_4_bit(format)) {
      for (std::uint32_t i = 0; i < kGroup / 2; ++i) to[i] = x[2 * i], to[kGroup / 2 + i] = x[2 * i + 1];
    } else {
      std::memcpy(to, x, kGroup * sizeof(float));
    }
  }
}

Operand normed_operand(const KernelCall& call, std::byte*& scratch, Format format, std::uint32_t rows, const float* x,
                       const float* gain) {
  const std::uint32_t width = call.model->hidden_size;
  Operand operand(scratch, format, rows, width);
  float* normed = take_floats(scratch, width);
  for (std::uint32_t r = 0; r < rows; ++r) {
    norm_row(x + std::size_t(r) * width, gain, width, call.model->rms_norm_eps, normed);
    operand.set_row(r, normed);
  }
  return operand;
}

std::size_t normed_operand_bytes(const ModelConstants& model, const void* rows_args) {
  return Operand::bytes(static_cast<const RowsArgs*>(rows_args)->rows, model.hidden_size) + scratch_floats(model.hidden_size);
}

Operand plain_operand(std::byte*& scratch, Format format, std::uint32_t rows, std::uint32_t columns, const float* x) {
  Operand operand(scratch, format, rows, columns);
  for (std::uint32_t r = 0; r < rows; ++r) operand.set_row(r, x + std::size_t(r) * columns);
  return operand;
}

// kRows weight rows times kProducts operand rows. Several rows at once hide the latency of the additions.
template <Format kFormat, int kRows, int kProducts>
static inline void dot_block(const Weight& w, std::size_t first, const Operand& x, const Product* products,
                             std::uint32_t y_index) {
  const std::uint32_t groups = x.columns / kGroup;
  const std::uint8_t* codes = w.codes + first * groups * group_bytes(kFormat);
  const std::size_t row_bytes = std::size_t(groups) * group_bytes(kFormat);
  const float* values[kProducts];
  for (int p = 0; p < kProducts; ++p) values[p] = x.values_of(products[p].row);

  Vf acc[kRows][kProducts] = {};
  for (std::uint32_t group = 0; group < groups; ++group, codes += group_bytes(kFormat)) {
    Vf dot[kRows][kProducts] = {};
    const std::uint32_t base = group * kGroup;
    // The hardware's prefetcher sees several short streams; the next block's rows are where they are expected to be.
    for (int r = 0; r < kRows; ++r) __builtin_prefetch(codes + (kRows + r) * row_bytes);
    if constexpr (is_4_bit(kFormat)) {
      for (std::uint32_t i = 0; i < kGroup / 2; i += kLanes) {
        for (int r = 0; r < kRows; ++r) {
          const Vi pair = widen(codes + r * row_bytes + i);
          const Vf even = to_float(pair & 15), odd = to_float(pair >> 4);
          for (int p = 0; p < kProducts; ++p) {
            dot[r][p] += even * loadf(values[p] + base + i);
            dot[r][p] += odd * loadf(values[p] + base + kGroup / 2 + i);
          }
        }
      }
    } else {
      for (std::uint32_t i = 0; i < kGroup; i += kLanes)
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
    for (int p = 0; p < kProducts; ++p) products[p].y[y_index + r] = sum(acc[r][p]) + rest[p];
  }
}

template <Format kFormat, int kProducts>
static void dot_rows(const Weight& w, std::size_t first, std::uint32_t count, const Operand& x, const Product* products) {
  constexpr int kRows = kProducts == 4 ? 2 : 4;  // as many accumulators as fit in 16 registers
  std::uint32_t i = 0;
  for (; i + kRows <= count; i += kRows) dot_block<kFormat, kRows, kProducts>(w, first + i, x, products, i);
  for (; i < count; ++i) dot_block<kFormat, 1, kProducts>(w, first + i, x, products, i);
}

void matvec(const Weight& w, std::size_t first, std::uint32_t count, const Operand& x, const Product* products,
            std::uint32_t num_products) {
  with_format(x.format, [&]<Format kFormat>() {
    // Strips of weight rows that stay in the first-level cache while all operand rows pass over them.
    constexpr std::uint32_t kStrip = 8;
    for (std::uint32_t i = 0; i < count; i += kStrip) {
      const std::uint32_t rows = count - i < kStrip ? count - i : kStrip;
      std::uint32_t p = 0;
      auto run = [&]<int kProducts>() {
        Product block[kProducts];
        for (int j = 0; j < kProducts; ++j) block[j] = {products[p + j].row, products[p + j].y + i};
        dot_rows<kFormat, kProducts>(w, first + i, rows, x, block);
        p += kProducts;
      };
      while (p + 4 <= num_products) run.template operator()<4>();
      if (p + 2 <= num_products) run.template operator()<2>();
      if (p < num_products) run.template operator()<1>();
    }
  });
}

void matvec_sections(const Weight& w, std::uint32_t begin, std::uint32_t end, const Operand& x, const Section* sections,
                     std::uint32_t num_sections) {
  for (std::uint32_t s = 0; s < num_sections; ++s) {
    const Section& section = sections[s];
    const std::uint32_t from = begin > section.begin ? begin : section.begin, to = end < section.end ? end : section.end;
    if (from >= to) continue;
    Product products[kMaxStepRows];
    for (std::uint32_t r = 0; r < x.rows; ++r)
      products[r] = {r, section.y + std::size_t(r) * (section.end - section.begin) + (from - section.begin)};
    matvec(w, from, to - from, x, products, x.rows);
  }
}

void matvec_add(const Weight& w, std::uint32_t begin, std::uint32_t end, const Operand& operand, float* x, std::uint32_t width) {
  constexpr std::uint32_t kStrip = 32;
  float y[kMaxStepRows][kStrip];
  Product products[kMaxStepRows];
  for (std::uint32_t r = 0; r < operand.rows; ++r) products[r] = {r, y[r]};
  for (std::uint32_t from = begin; from < end; from += kStrip) {
    const std::uint32_t count = end - from < kStrip ? end - from : kStrip;
    matvec(w, from, count, operand, products, operand.rows);
    for (std::uint32_t r = 0; r < operand.rows; ++r)
      for (std::uint32_t i = 0; i < count; ++i) x[std::size_t(r) * width + from + i] += y[r][i];
  }
}

void swiglu(const float* gate, const float* up, std::uint32_t count, float* h) {
  std::uint32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) storef(h + i, silu(loadf(gate + i)) * loadf(up + i));
  if (i < count) store_part(h + i, silu(load_part(gate + i, count - i)) * load_part(up + i, count - i), count - i);
}

}  // namespace lily::cpu::LILY_ISA
