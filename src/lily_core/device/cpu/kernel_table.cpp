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

// What -march=x86-64-v3, and -v4 with VNNI, need (cmake/cpu_kernels.cmake). Clang knows these names only since version 18, and
// before that not all features behind them; every processor with those that it knows has the others too.
#if defined(__clang__) && (defined(__apple_build_version__) || __clang_major__ < 18)
bool supports_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}
bool supports_v4() {
  return supports_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
#else
bool supports_v3() { return __builtin_cpu_supports("x86-64-v3"); }
bool supports_v4() { return __builtin_cpu_supports("x86-64-v4") && __builtin_cpu_supports("avx512vnni"); }
#endif

}  // namespace
#endif

namespace {

// The format part of a kernel's name.
const char* suffix_of(Format format) {
  switch (format) {
    case Format::kQ4: return "_q4g64";
    case Format::kQ4Wide: return "_q4g64w";
    case Format::kQ8: return "_q8g64";
    case Format::kQ8Wide: return "_q8g64w";
    case Format::kNone: break;
  }
  return "";
}

std::string name_of(const KernelEntry& entry) {
  return std::string(entry.op) + suffix_of(entry.format) + suffix_of(entry.second_format) +
         (entry.operands == Operands::kInt16 ? "_i16" : "_f32") + (entry.is_tile ? "_tile" : "");
}

}  // namespace

CpuKernel::CpuKernel(const KernelEntry& entry) : entry_(entry), name_(name_of(entry)) {
  const Contract* contract = find_contract(name_);
  if (!contract) throw std::logic_error("kernel " + name_ + " has no contract");
  accesses_ = accesses_of(*contract);
  args_size_ = contract->args_size;
}

void KernelTable::add(const KernelEntry& entry) {
  auto kernel = std::make_unique<CpuKernel>(entry);
  const std::string name(kernel->name());
  if (!kernels_.emplace(kernel->name(), std::move(kernel)).second) throw std::logic_error("two kernels are named " + name);
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

void add_kernel(KernelTable& table, KernelEntry entry) {
  for (const Operands operands : {Operands::kFloat32, Operands::kInt16}) {
    entry.operands = operands;
    table.add(entry);
  }
}

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
