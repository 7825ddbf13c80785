#include "device/cpu/debug_switches.h"

#include <algorithm>
#include <vector>

#include "device/cpu/cores.h"
#include "device/cpu/isas.h"
#include "device/debug_number.h"
#include "device/device.h"

namespace lily::cpu {
namespace {

std::string known(const std::vector<Isa>& all) {
  std::string text = "checked, shuffled, threads=N";
  for (const Isa& isa : all)
    if (isa.is_available()) text += ", " + std::string(isa.name);
  return text;
}

}  // namespace

DebugSwitches::DebugSwitches(std::string_view text) {
  const std::vector<Isa> all = isas();
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    const auto named = std::ranges::find(all, word, &Isa::name);
    if (word == "checked") {
      checked = true;
    } else if (word == "shuffled") {
      shuffled = true;
    } else if (const auto number = debug_number(word, "threads")) {
      threads = *number;
    } else if (named != all.end() && named->is_available()) {
      isa = word;
    } else {
      throw DeviceError("cpu", "", "debug",
                        "unknown debug switch \"" + std::string(word) + "\" of the cpu device; known here: " + known(all));
    }
  }
  if (isa.empty()) isa = std::ranges::find_if(all, [](const Isa& one) { return one.is_available(); })->name;
  if (is_one_thread()) threads = 1;
  if (!threads) threads = usable_cores();
}

}  // namespace lily::cpu
