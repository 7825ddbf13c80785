// The CPU device: native kernels for the best instruction set of this machine, run by a pool of threads.
#pragma once

#include <memory>

#include "device/device.h"

namespace lily::cpu {

Precision precision_of(std::string_view dtype);

std::unique_ptr<Device> make_cpu_device(const ModelConstants& model, std::string_view debug);

}  // namespace lily::cpu
