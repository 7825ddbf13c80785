// The instruction sets that kernels are compiled for (cmake/cpu_kernels.cmake).
#pragma once

#include <string_view>
#include <vector>

namespace lily::cpu {

// Those of this build that this machine runs, best first; the last is "baseline". On x86-64 "amx", "avx512_pairs", "avx512" and
// "avx2", on arm64 "i8mm" and "dotprod".
std::vector<std::string_view> available_isas();

}  // namespace lily::cpu
