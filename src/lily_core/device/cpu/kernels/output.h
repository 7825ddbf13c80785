// Where the rows of a product go when several projections of one input are one weight.
#pragma once

#include "device/cpu/kernel.h"

namespace lily::cpu::LILY_ISA {

// Columns of a product, `width` of them, that are rows of a matrix of their own.
struct OutputPart {
  float* to;
  std::uint32_t width;
};

// All columns of a product, in order.
template <int kParts>
struct OutputParts {
  OutputPart parts[kParts];

  // Cuts columns [begin, end) at the borders of the parts: piece(part, column within it, first column, number of columns).
  template <typename Piece>
  void for_pieces(std::uint32_t begin, std::uint32_t end, Piece piece) const {
    std::uint32_t part_begin = 0;
    for (const OutputPart& part : parts) {
      const std::uint32_t part_end = part_begin + part.width;
      const std::uint32_t from = begin > part_begin ? begin : part_begin, to = end < part_end ? end : part_end;
      if (from < to) piece(part, from - part_begin, from, to - from);
      part_begin = part_end;
    }
  }
};

}  // namespace lily::cpu::LILY_ISA
