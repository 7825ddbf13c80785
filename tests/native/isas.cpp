// The instruction sets that this machine runs, best first (tools/check_arm64.sh).
#include "device/cpu/isas.h"

#include <cstdio>

int main() {
  const char* separator = "";
  for (const auto& [isa, is_available] : lily::cpu::isas()) {
    if (!is_available()) continue;
    std::printf("%s%.*s", separator, int(isa.size()), isa.data());
    separator = " ";
  }
  std::printf("\n");
}
