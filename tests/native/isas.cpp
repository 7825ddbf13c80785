// The instruction sets that this machine runs, best first (tools/check_arm64.sh).
#include "device/cpu/isas.h"

#include <cstdio>

int main() {
  const char* separator = "";
  for (const std::string_view isa : lily::cpu::available_isas()) {
    std::printf("%s%.*s", separator, int(isa.size()), isa.data());
    separator = " ";
  }
  std::printf("\n");
}
