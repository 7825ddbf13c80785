// What LILY_CPU_DEBUG may hold, separated by commas.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lily::cpu {

struct DebugSwitches {
  // Throws DeviceError for a word that it does not know.
  explicit DebugSwitches(std::string_view text);
  bool is_one_thread() const { return checked || shuffled; }

  bool checked = false;       // closes every buffer that a dispatch did not bind; one thread
  bool shuffled = false;      // runs the dispatches of a level in random order; one thread
  std::uint32_t threads = 0;  // one a core, unless threads=N says another number
  std::string isa;            // the best instruction set, unless another one is named
};

}  // namespace lily::cpu
