// y = W x for the few rows of a step: exact codes times float32 activations, scale and bias applied once per group of 64.
#pragma once

#include "device/cpu/kernels/quant.h"

namespace lily::cpu::LILY_ISA {

constexpr std::uint32_t kMaxStepRows = 8;

// Activation rows laid out for the dot products. A 4-bit byte holds two neighbours, so those rows keep, in each group, the even
// elements in front of the odd ones; the group sums carry the biases.
class Operand {
 public:
  // Takes its memory from the front of `scratch`.
  Operand(std::byte*& scratch, Format format, std::uint32_t rows, std::uint32_t columns);
  static std::size_t bytes(std::uint32_t rows, std::uint32_t columns);

  void set_row(std::uint32_t row, const float* x);

  Format format() const { return format_; }
  std::uint32_t rows() const { return rows_; }
  std::uint32_t columns() const { return columns_; }
  const float* values(std::uint32_t row) const { return values_ + std::size_t(row) * columns_; }
  const float* group_sums(std::uint32_t row) const { return sums_ + std::size_t(row) * (columns_ / kGroup); }

 private:
  Format format_;
  std::uint32_t rows_;
  std::uint32_t columns_;
  float* values_;  // [rows][columns]
  float* sums_;    // [rows][columns / 64]
};

// Where one operand row's products go: y[i] = W[first + i] · row.
struct Product {
  std::uint32_t row;
  float* y;
};

// `count` weight rows from `first`, times the operand rows that `products` names. Each weight row comes from memory once.
void matvec(const Weight& w, std::size_t first, std::uint32_t count, const Operand& x, const Product* products,
            std::uint32_t num_products);

// Consecutive weight rows [begin, end) whose products are columns of `y`, a matrix [rows, end - begin].
struct Section {
  float* y;
  std::uint32_t begin;
  std::uint32_t end;
};

// Weight rows [begin, end) times every operand row, each product into the section that its weight row belongs to.
void matvec_sections(const Weight& w, std::uint32_t begin, std::uint32_t end, const Operand& x, const Section* sections,
                     std::uint32_t num_sections);

}  // namespace lily::cpu::LILY_ISA
