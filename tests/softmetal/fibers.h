// Runs a kernel of a shader library (tools/msl): every thread of a threadgroup is a fiber, threadgroups go one after another.
#pragma once

#include <cstdint>
#include <string>

#include "tools/msl/include/msl/runtime.h"

namespace softmetal {

// Of threadgroups, and of simdgroups and lanes in them, where nothing else orders them.
enum class Order { kForward, kReverse };

struct Launch {
  const msl_library* library;
  const msl_kernel* kernel;
  void* const* buffers;  // by index; what the kernel has no argument for is not looked at
  msl_uint3 groups;      // threadgroups
  msl_uint3 threads;     // per threadgroup
  Order order = Order::kForward;
};

struct Outcome {
  std::string fault;           // empty: all is well
  std::uintptr_t address = 0;  // of an access that faulted
};

// One at a time in the process; the others wait.
Outcome launch(const Launch& launch);

// How often threads parked, simdgroup operations ran and barriers opened since the process started.
struct Counts {
  std::uint64_t parks = 0, simdgroup_operations = 0, barriers = 0;
};
Counts counts();

}  // namespace softmetal
