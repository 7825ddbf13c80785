// One function per group of bound names, called by module.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace lily {

void bind_errors(nanobind::module_& m);
void bind_device(nanobind::module_& m);
void bind_checkpoint(nanobind::module_& m);
void bind_config(nanobind::module_& m);
void bind_sampling(nanobind::module_& m);
void bind_timeline(nanobind::module_& m);
void bind_runtime(nanobind::module_& m);
void bind_program_outline(nanobind::module_& m);

}  // namespace lily
