// A part of a Metal buffer: all of it, or a tensor in a window of a mapped file.
#pragma once

#import <Metal/Metal.h>

#include <memory>
#include <string>
#include <utility>

#include "device/buffer.h"
#include "device/metal/residency.h"

namespace lily::metal {

class MetalBuffer final : public Buffer {
 public:
  MetalBuffer(std::string name, std::uint64_t length, std::shared_ptr<Allocation> allocation, std::uint64_t offset)
      : Buffer(std::move(name), length), allocation_(std::move(allocation)), offset_(offset) {}

  // Memory is unified: the host reaches private buffers too, and copies nothing.
  void* contents() override { return allocation_->contents() + offset_; }

  id<MTLBuffer> metal() const { return allocation_->buffer(); }
  std::uint64_t offset() const { return offset_; }  // of the first byte in metal()

 private:
  std::shared_ptr<Allocation> allocation_;
  std::uint64_t offset_;
};

}  // namespace lily::metal
