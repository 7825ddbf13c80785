#include "device/cpu/cores.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace lily::cpu {
namespace {

// Of a file of Linux: "0-3,8-11", or an empty line.
std::vector<std::uint32_t> read_list(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::uint32_t> numbers;
  char separator = ',';
  for (std::uint32_t first; separator == ',' && file >> first;) {
    std::uint32_t last = first;
    if (file.get(separator) && separator == '-') file >> last >> separator;
    for (std::uint32_t number = first; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

// Two hyper-threads of one core share its vector units: siblings count once.
std::uint32_t count_cores(const std::string& folder, const Processors& processors) {
  std::set<std::string> cores;
  for (const std::uint32_t processor : processors) {
    const std::string name = std::to_string(processor);
    std::ifstream file(folder + "/cpu/cpu" + name + "/topology/thread_siblings_list");
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = name;
    cores.insert(siblings);
  }
  return static_cast<std::uint32_t>(cores.size());
}

#if defined(__linux__)
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
#endif

}  // namespace

std::uint32_t usable_cores() {
#if defined(__linux__)
  if (const std::uint32_t count = count_cores(kSystemFolder, allowed_processors())) {
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

Processors allowed_processors() {
  Processors allowed;
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return {};
  for (std::uint32_t processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(processor, &set)) allowed.push_back(processor);
#endif
  return allowed;
}

std::vector<Processors> processors_of_threads(const std::string& folder, const Processors& allowed, std::uint32_t threads) {
  std::vector<Processors> nodes;
  for (const std::uint32_t node : read_list(folder + "/node/online")) {
    const Processors all = read_list(folder + "/node/node" + std::to_string(node) + "/cpulist");
    Processors usable;
    std::ranges::set_intersection(all, allowed, std::back_inserter(usable));
    if (!usable.empty()) nodes.push_back(usable);  // a node may be memory alone
  }
  if (nodes.size() < 2) return {};
  std::vector<Processors> of_cores, of_threads;
  for (const Processors& node : nodes) of_cores.insert(of_cores.end(), count_cores(folder, node), node);
  for (std::uint64_t thread = 0; thread < threads; ++thread) of_threads.push_back(of_cores[thread * of_cores.size() / threads]);
  return of_threads;
}

}  // namespace lily::cpu
