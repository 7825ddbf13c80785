// How long a dispatch may take: an estimate from bytes and operations on the slowest supported GPU. It only decides where a
// program is cut into command buffers, and measurements correct it (Progress::pace).
#pragma once

#include <algorithm>
#include <cstdint>

#include "lily_args.h"
#include "program/program.h"

namespace lily::metal {

struct Cost {
  double seconds = 0;  // of a dispatch that has something to do
  // Of attention, which takes some of the keys that there are.
  double seconds_per_key = 0;
  const StepRow* step_row = nullptr;  // says how many there are; nullptr: not attention
  std::uint32_t rows = 0;
  std::uint32_t first_key = 0;
  std::uint32_t num_keys = UINT32_MAX;

  // Attention of keys behind the last row has nothing to do.
  bool is_idle() const { return step_row && keys() == 0; }
  double now() const { return is_idle() ? 0 : step_row ? seconds + seconds_per_key * keys() : seconds; }

 private:
  std::uint32_t keys() const {
    const std::uint32_t known = step_row->position + rows;
    return known > first_key ? std::min(known - first_key, num_keys) : 0;
  }
};

Cost estimate(const Dispatch& dispatch, const ModelConstants& model);

}  // namespace lily::metal
