// The contracts of the kernels (docs/design/kernels.md), the same on every device: what ranges and arguments each one takes.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace lily {

// The parts of a kernel's name: "gdn_in_q4g64_f32_tile" is the tile form of gdn_in for a weight of format q4g64.
struct KernelName {
  std::string_view op;
  std::vector<std::string_view> formats;  // of the weights, in the order in which they are bound
  std::string_view activation;            // "f32", "f16", "i16"
  bool is_tile = false;

  explicit KernelName(std::string_view name);
};

struct Contract {
  std::string_view op;
  bool is_tile;
  std::string_view access;  // one letter per bound range, in order: r(ead), w(ritten) or b(oth)
  std::uint32_t args_size;
};

// nullptr: no contract has that name.
const Contract* find_contract(std::string_view kernel_name);

// One per range.
std::vector<Access> accesses_of(const Contract& contract);

}  // namespace lily
