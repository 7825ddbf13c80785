#include "device/cpu/cores.h"

#include <algorithm>
#include <set>
#include <string>
#include <thread>

#if defined(__linux__)
#include <sched.h>

#include <fstream>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace lily::cpu {

#if defined(__linux__)
namespace {

// Whole processors that a container's share of time is worth (cgroups v2 or v1), at least 1; 0 without a quota. More threads
// would use it up early in each period, and then all wait for those that are stopped.
std::uint32_t quota_cores() {
  double quota = 0, period = 0;
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  if (!(file >> quota >> period)) {  // "max 100000", or no such file
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota;  // -1 is no quota
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? static_cast<std::uint32_t>(std::max(1.0, quota / period)) : 0;
}

}  // namespace
#endif

std::uint32_t usable_cores() {
#if defined(__linux__)
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
    // Two hyper-threads of one core share its vector units: count siblings once.
    std::set<std::string> cores;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
      std::string siblings;
      if (!std::getline(file, siblings)) siblings = std::to_string(cpu);
      cores.insert(siblings);
    }
    const auto count = std::max<std::uint32_t>(1, static_cast<std::uint32_t>(cores.size()));
    const std::uint32_t quota = quota_cores();
    return quota ? std::min(count, quota) : count;
  }
#elif defined(__APPLE__)
  // Efficiency cores would hold up every level.
  int count = 0;
  std::size_t size = sizeof count;
  if (sysctlbyname("hw.perflevel0.physicalcpu", &count, &size, nullptr, 0) == 0 && count > 0) return count;
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace lily::cpu
