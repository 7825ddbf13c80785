// What the GPU may touch: everything that lily allocated or mapped, in one residency set.
#pragma once

#import <Metal/Metal.h>

#include <memory>

#include "device/metal/progress.h"

namespace lily::metal {

class Residency {
 public:
  explicit Residency(id<MTLDevice> device);  // throws DeviceError

  id<MTLResidencySet> set() const { return set_; }
  void add(id<MTLBuffer> buffer);
  void remove(id<MTLBuffer> buffer);
  // Makes changes since the last call known to Metal and keeps the memory wired.
  void commit();

 private:
  id<MTLResidencySet> set_;
  bool changed_ = false;
};

// A Metal buffer that is resident while this object lives. Freed when no submitted work is left that might use it.
class Allocation {
 public:
  Allocation(id<MTLBuffer> buffer, std::shared_ptr<Residency> residency, std::shared_ptr<Progress> progress);
  ~Allocation();
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  id<MTLBuffer> buffer() const { return buffer_; }
  std::byte* contents() const { return contents_; }

 private:
  id<MTLBuffer> buffer_;
  std::byte* contents_;
  std::shared_ptr<Residency> residency_;
  std::shared_ptr<Progress> progress_;
};

}  // namespace lily::metal
