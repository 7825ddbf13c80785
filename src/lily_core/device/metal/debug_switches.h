// What LILY_METAL_DEBUG may hold.
#pragma once

#include <optional>
#include <string_view>

#include "device/metal/matrix_form.h"

namespace lily::metal {

struct DebugSwitches {
  bool metal3 = false;                 // the older API also where Metal 4 exists
  bool serial = false;                 // a barrier behind every dispatch
  double patience_seconds = 60;        // timeout=N: how long a wait lasts while nothing finishes
  std::optional<MatrixForm> form;      // tensor, simdgroup: this form of matrix products, whatever choose_form() would say

  // Words separated by commas. Throws DeviceError for one that it does not know.
  explicit DebugSwitches(std::string_view text);
};

}  // namespace lily::metal
