#include "device/metal/metal_executable.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "device/metal/metal_buffer.h"

namespace lily::metal {
namespace {

constexpr std::uint64_t kArgsStep = 256;  // satisfies every GPU's rule for offsets of constant buffers

NSUInteger count_groups(std::uint32_t extent, std::uint32_t elements) {
  return elements == 0 ? std::min(extent, 1u) : (extent + elements - 1) / elements;
}

}  // namespace

MetalExecutable::MetalExecutable(Program& program, const ModelConstants& model, const AllocateArgs& allocate) {
  args_ = allocate(program.num_dispatches() * kArgsStep);
  for (const Segment& segment : program.segments()) {
    PreparedSegment& prepared = segments_.emplace_back();
    for (const Dispatch& dispatch : segment.dispatches) add(prepared, dispatch, model);
  }
}

void MetalExecutable::add(PreparedSegment& segment, const Dispatch& dispatch, const ModelConstants& model) {
  const auto& kernel = static_cast<const MetalKernel&>(*dispatch.kernel);
  const Grid& grid = kernel.grid();
  const MTLSize threadgroups = MTLSizeMake(count_groups(dispatch.extent.x, grid.elements[0]),
                                           count_groups(dispatch.extent.y, grid.elements[1]),
                                           count_groups(dispatch.extent.z, grid.elements[2]));
  if (threadgroups.width * threadgroups.height * threadgroups.depth == 0) return;
  id<MTLComputePipelineState> pipeline = kernel.pipeline();
  if (pipeline.maxTotalThreadsPerThreadgroup < grid.threads)
    throw DeviceError("metal", std::string(kernel.name()), "threads",
                      std::string(kernel.name()) + " needs " + std::to_string(grid.threads) +
                          " threads per threadgroup; this GPU offers " + std::to_string(pipeline.maxTotalThreadsPerThreadgroup));
  segment.dispatches.push_back({.kernel = &kernel,
                                .pipeline = pipeline,
                                .threadgroups = threadgroups,
                                .threads = MTLSizeMake(grid.threads, 1, 1),
                                .first_binding = segment.buffers.size(),
                                .num_bindings = dispatch.ranges.size() + 1,
                                .level = dispatch.level});
  segment.costs.push_back(estimate(dispatch, model));
  for (const Range& range : dispatch.ranges) {
    const auto& buffer = static_cast<const MetalBuffer&>(*range.buffer);
    segment.buffers.push_back(buffer.metal());
    segment.offsets.push_back(buffer.offset() + range.offset);
  }
  std::memcpy(args_->contents() + args_used_, dispatch.args.data(), dispatch.args.size());
  segment.buffers.push_back(args_->buffer());
  segment.offsets.push_back(args_used_);
  args_used_ += kArgsStep;
}

}  // namespace lily::metal
