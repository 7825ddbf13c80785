// Software Metal: a double of MTLDevice and what follows from it, with kernels run on the CPU. What tests set and ask.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fibers.h"

namespace softmetal {

struct Settings {
  Order order = Order::kForward;  // kReverse also runs dispatches that nothing orders last to first: a forgotten barrier shows
  bool has_metal4 = true;
  std::uint64_t max_buffer_length = std::uint64_t{1} << 33;
  std::uint64_t working_set_size = std::uint64_t{1} << 34;
  // The command buffers after the next `fail_after` end with this MTLCommandBufferError, without having run. 0: none.
  std::uint64_t fail_after = 0;
  long fail_code = 0;
  bool stalls = false;  // command buffers do not finish while this is set
};
void configure(const Settings& settings);
Settings settings();

// A misuse of Metal that a Mac would not forgive, or would not notice.
void report(const std::string& message);
std::vector<std::string> take_reports();

}  // namespace softmetal
