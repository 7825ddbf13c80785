// Command buffers that are short enough for macOS, which ends work that holds the GPU for too long.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "device/metal/cost.h"

namespace lily::metal {

// Dispatches [begin, end) of a segment, which become one command buffer.
struct Cut {
  std::size_t begin, end;
  double seconds;  // estimated
};

// Cuts dispatches of these costs so that `pace` times the estimated time of a command buffer stays within 0.1 seconds, or is
// that of a single dispatch. A dispatch that has nothing to do never makes a command buffer of its own.
std::vector<Cut> cut(std::span<const Cost> costs, double pace);

}  // namespace lily::metal
