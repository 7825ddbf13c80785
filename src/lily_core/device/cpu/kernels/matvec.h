// y = W x for the few rows of a step: exact codes times float32 activations, scale and bias applied once per group of 64.
#pragma once

#include "device/cpu/kernels/quant.h"

namespace lily::cpu::LILY_ISA {

constexpr std::uint32_t kMaxStepRows = 8;

// Cuts a thread's scratch into pieces that start on cache lines.
constexpr std::size_t scratch_floats(std::size_t count) { return (count * sizeof(float) + 63) / 64 * 64; }
static inline float* take_floats(std::byte*& scratch, std::size_t count) {
  float* memory = reinterpret_cast<float*>(scratch);
  scratch += scratch_floats(count);
  return memory;
}

// Activation rows laid out for the dot products. A 4-bit byte holds two neighbours, so those rows keep, in each group, the even
// elements in front of the odd ones; the group sums carry the biases.
struct Operand {
  // Takes its memory from the front of `scratch`.
  Operand(std::byte*& scratch, Format format, std::uint32_t rows, std::uint32_t columns);
  static std::size_t bytes(std::uint32_t rows, std::uint32_t columns);

  void set_row(std::uint32_t row, const float* x);
  float* values_of(std::uint32_t row) const { return values + std::size_t(row) * columns; }
  float* sums_of(std::uint32_t row) const { return sums + std::size_t(row) * (columns / kGroup); }

  Format format;
  std::uint32_t rows;
  std::uint32_t columns;
  float* values;  // [rows][columns]
  float* sums;    // [rows][columns / 64]
};

// The prologue of the kernels that read the residual stream: an operand of rows norm(x, gain), H wide.
Operand normed_operand(const KernelCall& call, std::byte*& scratch, Format format, std::uint32_t rows, const float* x,
                       const float* gain);
std::size_t normed_operand_bytes(const ModelConstants& model, const void* rows_args);

// An operand of `rows` rows as they are.
Operand plain_operand(std::byte*& scratch, Format format, std::uint32_t rows, std::uint32_t columns, const float* x);

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

// x[r][i] += W[i] · operand row r for weight rows i in [begin, end); x is `width` wide.
void matvec_add(const Weight& w, std::uint32_t begin, std::uint32_t end, const Operand& operand, float* x, std::uint32_t width);

// h = silu(gate) · up
void swiglu(const float* gate, const float* up, std::uint32_t count, float* h);

}  // namespace lily::cpu::LILY_ISA
