// A shader as a kernel of the waist. It may still be compiling.
#pragma once

#import <Metal/Metal.h>

#include <future>
#include <string>
#include <utility>
#include <vector>

#include "device/contract.h"
#include "device/device.h"
#include "device/metal/grid.h"
#include "device/metal/pipelines.h"

namespace lily::metal {

class MetalKernel final : public Kernel {
 public:
  MetalKernel(std::string name, const Contract& contract, const Grid& grid, std::shared_future<Pipeline> pipeline)
      : name_(std::move(name)),
        accesses_(accesses_of(contract)),
        args_size_(contract.args_size),
        grid_(grid),
        pipeline_(std::move(pipeline)) {}

  std::string_view name() const override { return name_; }
  std::span<const Access> accesses() const override { return accesses_; }
  std::uint32_t args_size() const override { return args_size_; }

  const Grid& grid() const { return grid_; }
  // Waits for the compiler. Throws its DeviceError.
  id<MTLComputePipelineState> pipeline() const { return pipeline_.get().state; }

 private:
  std::string name_;
  std::vector<Access> accesses_;
  std::uint32_t args_size_;
  Grid grid_;
  std::shared_future<Pipeline> pipeline_;
};

}  // namespace lily::metal
