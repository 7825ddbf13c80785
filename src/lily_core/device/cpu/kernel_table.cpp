#include "device/cpu/kernel_table.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace lily::cpu {

// Defined by kernels/table.cpp, once per instruction set.
namespace baseline {
void add_all(KernelTable& table);
}
#if defined(__x86_64__)
namespace avx2 {
void add_all(KernelTable& table);
}
namespace avx512 {
void add_all(KernelTable& table);
}
#endif

#if defined(__x86_64__)
namespace {

// What -march=x86-64-v3 and -v4 need (cmake/cpu_kernels.cmake). Clang knows these names only since version 18, and before that
// not all features behind them; every processor with those that it knows has the others too.
#if defined(__clang__) && (defined(__apple_build_version__) || __clang_major__ < 18)
bool supports_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}
bool supports_v4() {
  return supports_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
bool supports_v3() { return __builtin_cpu_supports("x86-64-v3"); }
bool supports_v4() { return __builtin_cpu_supports("x86-64-v4"); }
#endif

}  // namespace
#endif

CpuKernel::CpuKernel(const KernelEntry& entry) : entry_(entry) {
  for (const char* letter = entry.access; *letter; ++letter)
    accesses_.push_back(*letter == 'r' ? Access::kRead : *letter == 'w' ? Access::kWrite : Access::kReadWrite);
}

void KernelTable::add(const KernelEntry& entry) {
  if (!kernels_.emplace(entry.name, std::make_unique<CpuKernel>(entry)).second)
    throw std::logic_error(std::string("two kernels are named ") + entry.name);
}

const CpuKernel* KernelTable::find(std::string_view name) const {
  const auto it = kernels_.find(name);
  return it == kernels_.end() ? nullptr : it->second.get();
}

std::vector<std::string_view> KernelTable::names() const {
  std::vector<std::string_view> names;
  for (const auto& [name, kernel] : kernels_) names.push_back(name);
  std::ranges::sort(names);
  return names;
}

void add_kernel(KernelTable& table, const KernelEntry& entry) { table.add(entry); }

std::vector<std::string_view> available_isas() {
  std::vector<std::string_view> isas;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (supports_v4()) isas.push_back("avx512");
  if (supports_v3()) isas.push_back("avx2");
#endif
  isas.push_back("baseline");
  return isas;
}

KernelTable kernels_for(std::string_view isa) {
  KernelTable table;
#if defined(__x86_64__)
  if (isa == "avx512") avx512::add_all(table);
  if (isa == "avx2") avx2::add_all(table);
#endif
  if (isa == "baseline") baseline::add_all(table);
  return table;
}

}  // namespace lily::cpu
