// A program flattened for the CPU: resolved addresses and tiles.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/cpu/kernel_table.h"
#include "program/program.h"

namespace lily::cpu {

// A dispatch with everything looked up. Not movable: `call` points into it.
struct PreparedCall {
  PreparedCall(const Dispatch& dispatch, const ModelConstants& model, std::uint32_t threads);
  PreparedCall(const PreparedCall&) = delete;

  const CpuKernel* kernel;
  std::vector<Range> ranges;
  std::vector<std::byte> args;
  std::vector<void*> addresses;
  KernelCall call;  // without scratch, which is the thread's
  std::uint32_t num_tiles;
  std::size_t scratch_bytes;
};

struct Level {
  std::vector<std::unique_ptr<PreparedCall>> calls;
  std::uint32_t num_tiles = 0;
};

class CpuExecutable final : public Executable {
 public:
  CpuExecutable(Program& program, const ModelConstants& model, std::uint32_t threads);
  std::uint32_t num_segments() const override { return static_cast<std::uint32_t>(segments_.size()); }

  std::vector<std::unique_ptr<Level>>& levels(std::uint32_t segment) { return segments_.at(segment); }
  std::size_t scratch_bytes() const { return scratch_bytes_; }  // the most that any kernel asks for

 private:
  std::vector<std::vector<std::unique_ptr<Level>>> segments_;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace lily::cpu
