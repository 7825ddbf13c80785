// Memory of a device and parts of it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

namespace lily {

enum class Memory {
  kPrivate,  // the device's own; the host uses Device::read, write, copy and fill
  kShared,   // the host may use contents() between commits
};

class Buffer {
 public:
  Buffer(std::string name, std::uint64_t length) : name_(std::move(name)), length_(length) {}
  virtual ~Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  const std::string& name() const { return name_; }
  std::uint64_t length() const { return length_; }
  // Host address; nullptr where the host cannot reach the memory. Only shared buffers may be touched through it.
  virtual void* contents() = 0;

 private:
  std::string name_;
  std::uint64_t length_;
};

// `length` bytes of `buffer` from `offset`: what a dispatch binds, reads or writes.
struct Range {
  Buffer* buffer = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  const char* label = nullptr;  // of what lies there, where several things take turns in a buffer

  std::string name() const { return label ? label : buffer->name(); }
  // `part_length` bytes of it from `begin`.
  Range part(std::uint64_t begin, std::uint64_t part_length) const { return {buffer, offset + begin, part_length, label}; }
};

}  // namespace lily
