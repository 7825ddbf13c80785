// Weights used where they lie in a mapped file: Metal buffers over windows of whole pages, no longer than Metal allows.
#pragma once

#import <Metal/Metal.h>

#include <map>
#include <memory>

#include "device/buffer.h"
#include "device/metal/residency.h"
#include "model/tensor_source.h"

namespace lily::metal {

class WeightWindows {
 public:
  WeightWindows(id<MTLDevice> device, std::shared_ptr<Residency> residency, std::shared_ptr<Progress> progress);

  // The tensor in its file's window, without a copy. nullptr when it does not start at a multiple of 16 bytes, the widest load of
  // the kernels, or is longer than a Metal buffer may be.
  std::unique_ptr<Buffer> map(const TensorSource& tensor);

 private:
  id<MTLDevice> device_;
  std::shared_ptr<Residency> residency_;
  std::shared_ptr<Progress> progress_;
  std::map<const std::byte*, std::weak_ptr<Allocation>> windows_;  // by their first byte
};

}  // namespace lily::metal
