// Faults of kernels: signals that become calls.
#pragma once

#include <cstdint>

namespace softmetal {

struct Fault {
  const char* what;
  std::uintptr_t address;  // 0: unknown
};

// Catches the faults of this thread, one at a time in the process: where `is_running_kernel` says so, the thread continues in
// `faulted`, on the stack that it is on, which must not return. All other faults go to the handler that was there before.
// Not for longer than a launch: of two such runtimes in a process, each would come to stand in front of the other, and a fault of
// neither would go round between them for ever.
class CaughtFaults {
 public:
  CaughtFaults(bool (*is_running_kernel)(), void (*faulted)(const Fault& fault));
  ~CaughtFaults();
  CaughtFaults(const CaughtFaults&) = delete;
};

}  // namespace softmetal
