#include "device/device.h"

#include "device/cpu/cpu_device.h"
#ifdef LILY_METAL
#include "device/metal/metal_device.h"
#endif

namespace lily {

namespace {

[[noreturn]] void throw_unavailable(std::string_view name) {
  throw DeviceError(std::string(name), "", "unavailable",
                    "device \"" + std::string(name) + "\" is not available in this build; use \"cpu\"");
}

}  // namespace

Precision precision_of(std::string_view device_name, std::string_view dtype) {
  if (device_name == "cpu") return cpu::precision_of(dtype);
#ifdef LILY_METAL
  if (device_name == "metal") return metal::precision_of(dtype);
#endif
  throw_unavailable(device_name);
}

DeviceTraits traits_of(std::string_view device_name) {
  if (device_name == "cpu") return {};
#ifdef LILY_METAL
  if (device_name == "metal") return metal::traits();
#endif
  throw_unavailable(device_name);
}

std::unique_ptr<Device> make_device(std::string_view name, const ModelConstants& model, std::string_view debug) {
  if (name == "cpu") return cpu::make_cpu_device(model, debug);
#ifdef LILY_METAL
  if (name == "metal") return metal::make_metal_device(model, debug);
#endif
  throw_unavailable(name);
}

}  // namespace lily
