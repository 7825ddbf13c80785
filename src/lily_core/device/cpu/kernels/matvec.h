// y = W x for the few rows of a step: exact codes times activations, scale and bias applied once per group of 64.
#pragma once

#include "device/cpu/kernels/output.h"
#include "device/cpu/kernels/quant.h"
#include "device/cpu/kernels/scratch.h"

namespace lily::cpu::LILY_ISA {

// Activation rows laid out for the dot products; the group sums carry the biases.
// As floats: a 4-bit byte holds two neighbours, so those rows keep, in each group, the even elements in front of the odd ones.
// As 16-bit integers: kLanes words of codes make a block; word l gives one pair of codes a shift, (j, j + half of its codes), so
// a block keeps, shift by shift, the pairs of its words. With dot products of bytes they are split into these (byte_dots.h).
struct Operand {
  Operand(const KernelCall& call, Scratch& scratch, Format format, std::uint32_t rows, std::uint32_t columns);

  void set_row(std::uint32_t row, const float* x);
  void set_rows(const float* x);  // all of them, as they are
  float* values_of(std::uint32_t row) const { return values + std::size_t(row) * columns; }
  std::int16_t* shorts_of(std::uint32_t row) const { return shorts + std::size_t(row) * padded; }
  float* sums_of(std::uint32_t row) const { return sums + std::size_t(row) * (columns / LILY_GROUP_SIZE); }

  Operands operands;
  Format format;
  std::uint32_t rows;
  std::uint32_t columns;
  std::uint32_t padded;  // columns, up to whole blocks
  float* sums;           // [rows][columns / LILY_GROUP_SIZE], of the integers where there are any
  float* values;         // [rows][columns], with kFloat32
  std::int16_t* shorts;  // [rows][padded], with kInt16
  std::int16_t* ordered;  // [padded]: one row in its own order, likewise
  float* scales;         // [rows], likewise
};

// Rows of the residual stream, H wide, each normed on its way into the operand.
struct NormedOperand : Operand {
  NormedOperand(const KernelCall& call, Scratch& scratch);

  void set_normed_row(std::uint32_t row, const float* x, const float* gain);

  float eps;
  float* normed;  // [H]
};

// The prologue of the kernels that start with norm(x): all rows of buffer 0, with the gain of buffer 1.
void set_normed_rows(const KernelCall& call, NormedOperand& x);
Operand normed_operand(const KernelCall& call);  // for those whose scratch is this and nothing else

// Where one operand row's products go: y[i] = W[first + i] · row.
struct Product {
  std::uint32_t row;
  float* y;
};

// Row `first` of a weight and those behind it.
struct Rows {
  Weight w;
  std::size_t first;
};

// `count` rows, and what will be read after them: memory must not wait for a jump.
struct Stretch {
  Rows rows;
  std::uint32_t count;
  Rows next;
};

// Weight rows times the operand rows that `products` names. Each weight row comes from memory once: a strip of them stays in the
// first-level cache while all operand rows pass over it.
constexpr std::uint32_t kStripRows = 8;
void matvec(const Stretch& stretch, const Operand& x, const Product* products, std::uint32_t num_products);

// All weight rows of the dispatch times every operand row: columns of `outputs`.
template <int kParts>
static inline void matvec_parts(const KernelCall& call, std::uint32_t first, std::uint32_t last, const Weight& w,
                                const Operand& x, const OutputParts<kParts>& outputs) {
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    outputs.for_pieces(t.x0, t.x1, [&](const OutputPart& part, std::uint32_t column, std::uint32_t row, std::uint32_t count) {
      Product products[LILY_MAX_STEP_ROWS];
      for (std::uint32_t r = 0; r < x.rows; ++r) products[r] = {r, part.to + std::size_t(r) * part.width + column};
      matvec({{w, row}, count, {w, std::size_t(row) + count}}, x, products, x.rows);
    });
  }
}

// x[r][i] += W[i] · operand row r for all weight rows i of the dispatch; x is the residual stream.
void matvec_add(const KernelCall& call, std::uint32_t first, std::uint32_t last, const Weight& w, const Operand& operand,
                float* x);

// The products' y = silu(W_gate row) · (W_up row) for `count` rows of both weights from `first`; `next_first` is where both will
// be read after them.
constexpr std::uint32_t kGateUpColumns = 16;  // the most at a time
void matvec_gate_up(const Weight& gate, const Weight& up, std::size_t first, std::uint32_t count, std::size_t next_first,
                    const Operand& x, const Product* products, std::uint32_t num_products);

}  // namespace lily::cpu::LILY_ISA
