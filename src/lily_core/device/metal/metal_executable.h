// A program made ready for Metal: pipelines, bindings, argument structs and threadgroups, so that replay looks nothing up.
#pragma once

#import <Metal/Metal.h>

#include <functional>
#include <memory>
#include <vector>

#include "device/metal/cost.h"
#include "device/metal/metal_kernel.h"
#include "device/metal/residency.h"
#include "program/program.h"

namespace lily::metal {

struct PreparedDispatch {
  const MetalKernel* kernel;
  id<MTLComputePipelineState> pipeline;
  MTLSize threadgroups;
  MTLSize threads;  // per threadgroup
  std::size_t first_binding;
  std::size_t num_bindings;  // the ranges, then the argument struct
  std::uint32_t level;
};

struct PreparedSegment {
  std::vector<PreparedDispatch> dispatches;  // in the order of their levels
  std::vector<Cost> costs;                   // of each of them
  std::vector<id<MTLBuffer>> buffers;        // bindings of all dispatches
  std::vector<NSUInteger> offsets;
  std::vector<id> argument_tables;  // one a dispatch, where the queue uses them
};

// Makes the buffer that holds the argument structs.
using AllocateArgs = std::function<std::shared_ptr<Allocation>(std::uint64_t length)>;

class MetalExecutable final : public Executable {
 public:
  // Waits until the kernels are compiled. Throws DeviceError when one cannot be, or needs more threads than the GPU offers.
  MetalExecutable(Program& program, const ModelConstants& model, const AllocateArgs& allocate);

  std::uint32_t num_segments() const override { return static_cast<std::uint32_t>(segments_.size()); }
  std::vector<PreparedSegment>& segments() { return segments_; }

 private:
  void add(PreparedSegment& segment, const Dispatch& dispatch, const ModelConstants& model);

  std::shared_ptr<Allocation> args_;
  std::uint64_t args_used_ = 0;
  std::vector<PreparedSegment> segments_;
};

}  // namespace lily::metal
