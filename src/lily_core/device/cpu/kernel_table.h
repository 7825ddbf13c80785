// The kernels of one instruction set, by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "device/cpu/kernel.h"
#include "device/contract.h"
#include "device/device.h"

namespace lily::cpu {

class CpuKernel final : public Kernel {
 public:
  explicit CpuKernel(const KernelEntry& entry);
  std::string_view name() const override { return name_; }
  std::span<const Access> accesses() const override { return accesses_; }
  std::uint32_t args_size() const override { return args_size_; }
  const KernelEntry& entry() const { return entry_; }

 private:
  KernelEntry entry_;
  std::string name_;
  std::vector<Access> accesses_;
  std::uint32_t args_size_;
};

class KernelTable {
 public:
  void add(const KernelEntry& entry);
  const CpuKernel* find(std::string_view name) const;  // nullptr: none of that name
  std::vector<std::string_view> names() const;         // sorted
  void set_multiply_loop(MultiplyLoop loop) { multiply_loop_ = loop; }
  MultiplyLoop multiply_loop() const { return multiply_loop_; }

 private:
  std::unordered_map<std::string_view, std::unique_ptr<CpuKernel>> kernels_;
  MultiplyLoop multiply_loop_ = nullptr;
};

// Of an instruction set (isas.h).
KernelTable kernels_for(std::string_view isa);

}  // namespace lily::cpu
