// How long a dispatch may take: an estimate from bytes and operations on the slowest supported GPU. It only decides where a
// program is cut into command buffers, and measurements correct it (Progress::pace).
#pragma once

#include "lily_args.h"
#include "program/program.h"

namespace lily::metal {

struct Cost {
  double seconds = 0;
  double seconds_per_key = 0;         // of the attention's context
  const StepRow* step_row = nullptr;  // says how long the context is; nullptr where it does not matter

  double now() const { return step_row ? seconds + seconds_per_key * step_row->position : seconds; }
};

Cost estimate(const Dispatch& dispatch, const ModelConstants& model);

}  // namespace lily::metal
