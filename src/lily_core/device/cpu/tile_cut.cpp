#include "device/cpu/tile_cut.h"

#include <algorithm>

namespace lily::cpu {

std::uint32_t cut_into_tiles(const KernelEntry& entry, std::uint32_t threads, KernelCall& call) {
  for (int axis = 0; axis < 3; ++axis) call.tile[axis] = entry.tile[axis] ? entry.tile[axis] : std::max(1u, call.extent[axis]);
  const auto tiles_along = [&](int axis) { return (call.extent[axis] + call.tile[axis] - 1) / call.tile[axis]; };
  const std::uint32_t others = tiles_along(1) * tiles_along(2);
  if (entry.least_x > 0)
    while (tiles_along(0) * others < threads && call.tile[0] / 2 >= entry.least_x) call.tile[0] /= 2;
  return tiles_along(0) * others;
}

}  // namespace lily::cpu
