// What LILY_CPU_DEBUG may hold, separated by commas.
#pragma once

#include <string>

namespace lily::cpu {

struct DebugSwitches {
  // Throws DeviceError for a word that it does not know.
  explicit DebugSwitches(const std::string& text);
  bool is_one_thread() const { return checked || shuffled; }

  bool checked = false;   // closes every buffer that a dispatch did not bind; one thread
  bool shuffled = false;  // runs the dispatches of a level in random order; one thread
  std::string isa;        // the best instruction set, unless another one is named
};

}  // namespace lily::cpu
