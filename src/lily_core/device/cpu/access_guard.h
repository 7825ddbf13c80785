// The checked mode: while a kernel runs, only what its dispatch bound may be touched.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "device/cpu/cpu_buffer.h"
#include "device/device.h"

namespace lily::cpu {

class AccessGuard {
 public:
  AccessGuard();

  void watch(CpuBuffer& buffer);
  void drop(const CpuBuffer& buffer);

  // Runs `body`, which is `kernel` and nothing else, on this thread. The bound ranges are open, those that the kernel reads only
  // for reading; every other watched page is closed, those of shared memory for writing only. Throws DeviceError naming kernel
  // and buffer when it touches one of those, or reads past the end of a buffer. Protection works in pages of the system.
  void run(const Kernel& kernel, std::span<const Range> ranges, const std::function<void()>& body);

 private:
  std::vector<CpuBuffer*> watched_;
};

}  // namespace lily::cpu
