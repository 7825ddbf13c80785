// The extension module lily._core: thin, no logic.
#include <nanobind/nanobind.h>
#include <pthread.h>

#include "bindings/bindings.h"

NB_MODULE(_core, m) {
  m.doc() = "Native core of lily.";
  // A child made by fork inherits what the other threads held, and cannot give it back: no report about that when it ends.
  pthread_atfork(nullptr, nullptr, [] { nanobind::set_leak_warnings(false); });
  lily::bind_errors(m);
  lily::bind_device(m);
  lily::bind_checkpoint(m);
  lily::bind_config(m);
  lily::bind_sampling(m);
  lily::bind_timeline(m);
  lily::bind_runtime(m);
  lily::bind_program_outline(m);
}
