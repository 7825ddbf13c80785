// A recorded list of dispatches. Levels and barriers are derived from what each dispatch reads and writes, never set by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "device/device.h"

namespace lily {

struct Dispatch {
  const Kernel* kernel;
  std::vector<std::byte> args;
  std::vector<Range> ranges;  // in the order of kernel->accesses()
  Extent extent;
  std::uint32_t level;  // dispatches of one level of a segment may run in any order or at once
};

// A stretch without host work in between. Dispatches are in the order of their levels.
struct Segment {
  std::vector<Dispatch> dispatches;
  std::uint32_t num_levels = 0;
};

class Program {
 public:
  // Appends a dispatch. Throws std::invalid_argument when the arguments or ranges do not fit the kernel's signature.
  template <typename Args>
  void dispatch(const Kernel& kernel, const Args& args, std::vector<Range> ranges, Extent extent) {
    std::vector<std::byte> bytes(sizeof args);
    std::memcpy(bytes.data(), &args, sizeof args);
    dispatch_bytes(kernel, std::move(bytes), std::move(ranges), extent);
  }
  void dispatch_bytes(const Kernel& kernel, std::vector<std::byte> args, std::vector<Range> ranges, Extent extent);

  // Ends the current segment: the host may act before the next one starts.
  void end_segment();

  // Segments with their levels derived; ends the last one.
  const std::vector<Segment>& segments();

  std::uint32_t num_dispatches() const;
  std::uint32_t num_levels() const;

 private:
  std::vector<Segment> segments_;
  std::vector<Dispatch> open_;
};

}  // namespace lily
