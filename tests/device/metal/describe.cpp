// Prints the form of matrix products that the Metal device chose, and why.
#include <cstdio>

#include "device/metal/metal_device.h"

int main() {
  const auto device = lily::metal::make_metal_device({}, {});
  std::printf("%s: %s\n", device->description().c_str(), device->notes().c_str());
}
