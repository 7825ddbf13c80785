// What Python sees of checkpoint files.
#pragma once

#include <nanobind/nanobind.h>

namespace lily {

void bind_checkpoint(nanobind::module_& m);

}  // namespace lily
