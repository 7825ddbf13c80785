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
namespace avx512_pairs {
void add_all(KernelTable& table);
}
namespace amx {
void add_all(KernelTable& table);
}
#elif defined(__aarch64__)
namespace dotprod {
void add_all(KernelTable& table);
}
namespace i8mm {
void add_all(KernelTable& table);
}
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

void set_multiply_loop(KernelTable& table, MultiplyLoop loop) { table.set_multiply_loop(loop); }

KernelTable kernels_for(std::string_view isa) {
  KernelTable table;
#if defined(__x86_64__)
  if (isa == "amx") amx::add_all(table);
  if (isa == "avx512_pairs") avx512_pairs::add_all(table);
  if (isa == "avx512") avx512::add_all(table);
  if (isa == "avx2") avx2::add_all(table);
#elif defined(__aarch64__)
  if (isa == "i8mm") i8mm::add_all(table);
  if (isa == "dotprod") dotprod::add_all(table);
#endif
  if (isa == "baseline") baseline::add_all(table);
  return table;
}

}  // namespace lily::cpu
