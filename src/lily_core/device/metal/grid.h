// How a kernel's problem size is cut into threadgroups.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace lily::metal {

struct Grid {
  std::string_view op;
  bool is_tile;
  std::uint32_t elements[3];  // of the extent along x, y and z per threadgroup; 0: the whole axis
  std::uint32_t threads;      // per threadgroup, a multiple of 32
  std::uint32_t weights = 0;  // formats in the kernel's name: two for experts_down, whose second is that of the shared expert
};

// One per kernel that has a shader.
std::span<const Grid> grids();

// nullptr: the kernel has no shader.
const Grid* find_grid(std::string_view op, bool is_tile);

}  // namespace lily::metal
