// The Metal device: shaders of shaders/ on the GPU of a Mac.
#pragma once

#include <memory>
#include <string_view>

#include "device/device.h"

namespace lily::metal {

// As lily::precision_of: float16.
Precision precision_of(std::string_view dtype);

// As lily::traits_of.
DeviceTraits traits();

std::unique_ptr<Device> make_metal_device(const ModelConstants& model, std::string_view debug);

}  // namespace lily::metal
