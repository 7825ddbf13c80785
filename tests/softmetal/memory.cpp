#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
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

// New memory is all ones. Large buffers get it page by page as they are touched: they map a file of ones copy-on-write.
constexpr std::uint64_t kOnesBytes = 16 << 20;

int ones_file() {
  static const int file = [] {
    const int made = memfd_create("softmetal-ones", MFD_CLOEXEC);
    if (made < 0 || ftruncate(made, off_t(kOnesBytes)) != 0) return -1;
    void* content = mmap(nullptr, kOnesBytes, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
    if (content == MAP_FAILED) return -1;
    std::memset(content, 0xff, kOnesBytes);
    munmap(content, kOnesBytes);
    return made;
  }();
  return file;
}

// `begin` and `length` are whole pages.
bool fill_with_ones(char* begin, std::uint64_t length) {
  if (length < kOnesBytes) {
    if (mprotect(begin, length, PROT_READ | PROT_WRITE) != 0) return false;
    std::memset(begin, 0xff, length);
    return true;
  }
  if (ones_file() < 0) return false;
  for (std::uint64_t at = 0; at < length; at += kOnesBytes) {
    const std::uint64_t part = std::min(kOnesBytes, length - at);
    if (mmap(begin + at, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, ones_file(), 0) == MAP_FAILED)
      return false;
  }
  return true;
}

std::string name(const Allocation& allocation) {
  return "'" + allocation.label + "' (" + std::to_string(allocation.length) + " bytes)";
}

}  // namespace

void* allocate_guarded(std::uint64_t length) {
  const std::uint64_t used = rounded(length, 16), pages = rounded(used, page());
  void* memory = mmap(nullptr, pages + 2 * page(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char* first = static_cast<char*>(memory) + page();
  if (!fill_with_ones(first, pages)) {
    munmap(memory, pages + 2 * page());
    return nullptr;
  }
  return first + pages - used;
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
