#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <utility>

namespace softmetal {
namespace {

struct Allocations {
  std::mutex mutex;
  std::map<std::uintptr_t, Allocation> live;
};
Allocations& allocations() {
  static Allocations* const only = new Allocations;
  return *only;
}

std::uint64_t rounded(std::uint64_t length, std::uint64_t unit) { return (length + unit - 1) / unit * unit; }
std::uint64_t page() { return std::uint64_t(sysconf(_SC_PAGESIZE)); }

std::string name(const Allocation& allocation) {
  return "'" + allocation.label + "' (" + std::to_string(allocation.length) + " bytes)";
}

}  // namespace

void* allocate_guarded(std::uint64_t length) {
  const std::uint64_t used = rounded(length, 16), pages = rounded(used, page());
  void* memory = mmap(nullptr, pages + 2 * page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char* first = static_cast<char*>(memory) + page();
  if (mprotect(first, pages, PROT_READ | PROT_WRITE) != 0) {
    munmap(memory, pages + 2 * page());
    return nullptr;
  }
  void* begin = first + pages - used;
  std::memset(begin, 0xff, length);
  return begin;
}

void free_guarded(void* memory, std::uint64_t length) {
  const std::uint64_t used = rounded(length, 16), pages = rounded(used, page());
  munmap(static_cast<char*>(memory) - (pages - used) - page(), pages + 2 * page());
}

void add_allocation(Allocation allocation) {
  const std::lock_guard lock(allocations().mutex);
  allocations().live[allocation.begin] = std::move(allocation);
}

void remove_allocation(std::uintptr_t begin) {
  const std::lock_guard lock(allocations().mutex);
  allocations().live.erase(begin);
}

void label_allocation(std::uintptr_t begin, std::string label) {
  const std::lock_guard lock(allocations().mutex);
  const auto found = allocations().live.find(begin);
  if (found != allocations().live.end()) found->second.label = std::move(label);
}

std::optional<Allocation> find_allocation(std::uintptr_t address) {
  const std::lock_guard lock(allocations().mutex);
  auto after = allocations().live.upper_bound(address);
  if (after == allocations().live.begin()) return std::nullopt;
  const Allocation& candidate = std::prev(after)->second;
  return address <= candidate.end() ? std::optional(candidate) : std::nullopt;
}

std::string describe_address(std::uintptr_t address) {
  const std::lock_guard lock(allocations().mutex);
  const auto& live = allocations().live;
  constexpr std::uint64_t kNear = 1 << 16;
  const auto after = live.upper_bound(address);
  if (after != live.begin()) {
    const Allocation& before = std::prev(after)->second;
    if (address >= before.end() && address - before.end() < kNear)
      return std::to_string(address - before.end()) + " bytes past the end of " + name(before);
  }
  if (after != live.end() && after->second.begin - address < kNear)
    return std::to_string(after->second.begin - address) + " bytes before " + name(after->second);
  return "no buffer is near";
}

}  // namespace softmetal
