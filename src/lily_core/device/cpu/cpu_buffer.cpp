#include "device/cpu/cpu_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "device/cpu/access_guard.h"
#include "device/device.h"

namespace lily::cpu {
namespace {

constexpr std::uint64_t kLeastElement = 2;  // bytes: a buffer that ends behind its last element starts as its elements want

std::uint64_t round_up(std::uint64_t value, std::uint64_t step) { return (value + step - 1) / step * step; }

}  // namespace

std::uint64_t page_size() {
  static const auto size = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

void give_back(std::byte* address, std::uint64_t length) {
#ifdef __APPLE__
  constexpr int kAdvice = MADV_FREE;
#else
  constexpr int kAdvice = MADV_DONTNEED;
#endif
  const auto begin = round_up(reinterpret_cast<std::uintptr_t>(address), page_size());
  const auto end = (reinterpret_cast<std::uintptr_t>(address) + length) / page_size() * page_size();
  // Only advice: where the system does not take it, the memory stays as it is.
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, kAdvice);
}

CpuBuffer::CpuBuffer(std::string name, std::uint64_t length, Memory memory, AccessGuard* guard)
    : Buffer(std::move(name), length), memory_(memory), guard_(guard) {
  pages_length_ = round_up(length ? length : 1, page_size());
  mapping_length_ = pages_length_ + (guard_ ? page_size() : 0);
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_NORESERVE)
  flags |= MAP_NORESERVE;
#endif
  void* mapping = mmap(nullptr, mapping_length_, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (mapping == MAP_FAILED)
    throw DeviceError("cpu", "", "out_of_memory",
                      "cannot allocate " + std::to_string(length) + " bytes for " + this->name() + ": " + std::strerror(errno));
  mapping_ = mapping;
  start_ = pages_begin();
  if (guard_) {
    if (mprotect(pages_end(), page_size(), PROT_NONE) != 0) {
      const int error = errno;
      munmap(mapping_, mapping_length_);
      throw DeviceError("cpu", "", "debug",
                        "the checked mode cannot close the page behind " + this->name() + ": " + std::strerror(error));
    }
    start_ = pages_end() - round_up(length ? length : 1, kLeastElement);  // the closed page is next to its end
    guard_->watch(*this);
  }
}

CpuBuffer::~CpuBuffer() {
  if (guard_) guard_->drop(*this);
  munmap(mapping_, mapping_length_);
}

}  // namespace lily::cpu
