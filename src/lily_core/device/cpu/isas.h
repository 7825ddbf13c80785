// The instruction sets that kernels are compiled for (cmake/cpu_kernels.cmake).
#pragma once

#include <string_view>
#include <vector>

namespace lily::cpu {

struct Isa {
  std::string_view name;
  bool (*is_available)();  // on this machine. That of "amx" asks Linux for the tile registers, which this process then has
};

// Those of this build, the best for this processor first. On x86-64 "amx", "avx512_pairs", "avx512" and "avx2", on arm64 "i8mm"
// and "dotprod"; the last is "baseline", which every machine has.
std::vector<Isa> isas();

}  // namespace lily::cpu
