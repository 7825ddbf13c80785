// A device with every kernel and no memory but what the host shares: programs can be recorded for it and looked at, but not run.
// It has float16 operands, as GPUs do.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace lily {

class OutlineDevice final : public Device {
 public:
  static Precision precision() { return {"float16", "_f16", 2, 2}; }

  std::string_view name() const override { return "outline"; }
  std::string description() const override { return "programs only"; }

  // A private buffer has no contents; what is written to it is forgotten.
  std::unique_ptr<Buffer> allocate(std::string name, std::uint64_t length, Memory memory) override;
  void write(const Range&, const void*) override {}
  void copy(const Range&, const Range&) override {}
  void fill(const Range&, std::uint8_t) override {}
  PreparedWeight prepare(const HostWeight& weight) override;
  const Kernel& kernel(std::string_view name) override;
  std::vector<std::string_view> kernel_names() const override;  // of those asked for so far

  // Throw std::logic_error: there is nothing to run.
  void read(const Range& from, void* to) override;
  std::unique_ptr<Executable> compile(Program& program) override;
  Ticket commit(Executable& executable, std::uint32_t segment) override;
  void wait(Ticket ticket) override;

 private:
  std::map<std::string, std::unique_ptr<Kernel>, std::less<>> kernels_;
};

}  // namespace lily
