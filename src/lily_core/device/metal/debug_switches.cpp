#include "device/metal/debug_switches.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "device/device.h"

namespace lily::metal {
namespace {

bool parse_timeout(std::string_view word, double& seconds) {
  constexpr std::string_view kPrefix = "timeout=";
  if (!word.starts_with(kPrefix)) return false;
  unsigned number = 0;
  const char* end = word.data() + word.size();
  const auto [rest, error] = std::from_chars(word.data() + kPrefix.size(), end, number);
  seconds = number;
  return error == std::errc() && rest == end && number > 0;
}

}  // namespace

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
    } else if (!parse_timeout(word, patience_seconds)) {
      throw DeviceError("metal", "", "debug",
                        "unknown debug switch \"" + std::string(word) +
                            "\" of the metal device; known here: metal3, serial, simdgroup, tensor, timeout=SECONDS");
    }
  }
}

}  // namespace lily::metal
