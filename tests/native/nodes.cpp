// Prints which processors each of a number of threads keeps to, a line for each: nodes SYSTEM_FOLDER THREADS PROCESSOR...
#include <cstdio>
#include <cstdlib>

#include "device/cpu/cores.h"

int main(int, char** arguments) {
  lily::cpu::Processors allowed;
  for (char** argument = arguments + 3; *argument; ++argument)
    allowed.push_back(static_cast<std::uint32_t>(std::strtoul(*argument, nullptr, 10)));
  const auto threads = static_cast<std::uint32_t>(std::strtoul(arguments[2], nullptr, 10));
  for (const auto& processors : lily::cpu::processors_of_threads(arguments[1], allowed, threads)) {
    for (const std::uint32_t processor : processors) std::printf("%u ", processor);
    std::printf("\n");
  }
}
