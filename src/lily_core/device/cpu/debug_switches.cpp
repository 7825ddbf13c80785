#include "device/cpu/debug_switches.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "device/cpu/isas.h"
#include "device/device.h"

namespace lily::cpu {
namespace {

std::string known(const std::vector<std::string_view>& isas) {
  std::string text = "checked, shuffled";
  for (const std::string_view name : isas) text += ", " + std::string(name);
  return text;
}

}  // namespace

DebugSwitches::DebugSwitches(const std::string& text) {
  const auto isas = available_isas();
  isa = isas.front();
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (word == "checked") {
      checked = true;
    } else if (word == "shuffled") {
      shuffled = true;
    } else if (std::ranges::find(isas, word) != isas.end()) {
      isa = word;
    } else {
      throw DeviceError("cpu", "", "debug",
                        "unknown debug switch \"" + word + "\" of the cpu device; known here: " + known(isas));
    }
    begin = end + 1;
  }
}

}  // namespace lily::cpu
