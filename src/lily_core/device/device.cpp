#include "device/device.h"

#include "device/cpu/cpu_device.h"

namespace lily {

std::unique_ptr<Device> make_device(std::string_view name, const ModelConstants& model, const DeviceOptions& options) {
  if (name == "cpu") return cpu::make_cpu_device(model, options);
  throw DeviceError(std::string(name), "", "unavailable",
                    "device \"" + std::string(name) + "\" is not available in this build; use \"cpu\"");
}

}  // namespace lily
