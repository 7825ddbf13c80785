// Memory of the CPU device: whole pages of its own, so that the checked mode can close them one buffer at a time.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "device/buffer.h"

namespace lily::cpu {

class AccessGuard;

class CpuBuffer final : public Buffer {
 public:
  // Zeroed memory that the system provides when it is first touched. With a guard (which must outlive the buffer) it is watched,
  // and the last byte lies before a page that faults. Throws DeviceError when the system refuses.
  CpuBuffer(std::string name, std::uint64_t length, Memory memory, AccessGuard* guard);
  ~CpuBuffer() override;
  void* contents() override { return start_; }

  Memory memory() const { return memory_; }

  // The whole pages that hold this buffer and nothing else.
  std::byte* pages_begin() const { return static_cast<std::byte*>(mapping_); }
  std::byte* pages_end() const { return pages_begin() + pages_length_; }

 private:
  Memory memory_;
  AccessGuard* guard_;
  std::uint64_t pages_length_ = 0;
  void* mapping_ = nullptr;
  std::uint64_t mapping_length_ = 0;
  void* start_ = nullptr;
};

// Bytes of a mapped file, which must outlive the buffer. Read only, whatever the type says.
class MappedBuffer final : public Buffer {
 public:
  MappedBuffer(std::string name, const std::byte* address, std::uint64_t length)
      : Buffer(std::move(name), length), address_(address) {}
  void* contents() override { return const_cast<std::byte*>(address_); }

 private:
  const std::byte* address_;
};

std::uint64_t page_size();

// Gives the whole pages within [address, address + length) of a CpuBuffer back to the system.
void give_back(std::byte* address, std::uint64_t length);

}  // namespace lily::cpu
