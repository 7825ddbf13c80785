#include "device/metal/debug_switches.h"

#include <algorithm>
#include <string>

#include "device/debug_number.h"
#include "device/device.h"

namespace lily::metal {

DebugSwitches::DebugSwitches(std::string_view text) {
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (word == "metal3") {
      metal3 = true;
    } else if (word == "serial") {
      serial = true;
    } else if (word == "simdgroup") {
      form = MatrixForm::kSimdgroup;
    } else if (word == "tensor") {
      form = MatrixForm::kTensor;
    } else if (const auto timeout = debug_number(word, "timeout")) {
      patience_seconds = *timeout;
    } else {
      throw DeviceError("metal", "", "debug",
                        "unknown debug switch \"" + std::string(word) +
                            "\" of the metal device; known here: metal3, serial, simdgroup, tensor, timeout=SECONDS");
    }
  }
}

}  // namespace lily::metal
