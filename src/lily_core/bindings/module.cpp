// The extension module lily._core: thin, no logic.
#include <nanobind/nanobind.h>

#include "bindings/bindings.h"

NB_MODULE(_core, m) {
  m.doc() = "Native core of lily.";
  lily::bind_errors(m);
  lily::bind_device(m);
  lily::bind_checkpoint(m);
  lily::bind_runtime(m);
  lily::bind_recording(m);
}
