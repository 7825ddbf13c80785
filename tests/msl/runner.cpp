// The fiber runtime for ctypes: one dispatch of a compiled shader.
#include <cstring>
#include <mutex>
#include <string>

#include "tests/softmetal/fibers.h"

extern "C" {

// Fault text, empty when all is well; valid until the next call.
const char* run_kernel(const msl_library* library, const char* name, void* const* buffers, const unsigned* groups,
                       const unsigned* threads, int reverse) {
  static std::string message;
  message = std::string("no kernel ") + name;
  for (unsigned i = 0; i < library->num_kernels; ++i) {
    if (std::strcmp(library->kernels[i].name, name) != 0) continue;
    message = softmetal::launch({library, &library->kernels[i], buffers, {groups[0], groups[1], groups[2]},
                                 {threads[0], threads[1], threads[2]},
                                 reverse ? softmetal::Order::kReverse : softmetal::Order::kForward})
                  .fault;
  }
  return message.c_str();
}

void read_counts(unsigned long* out) {
  const softmetal::Counts counts = softmetal::counts();
  out[0] = counts.parks;
  out[1] = counts.simdgroup_operations;
  out[2] = counts.barriers;
}
}
