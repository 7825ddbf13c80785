// A thread's scratch memory, and how a kernel lays it out: as a struct whose constructor (call, Scratch&) takes its pieces.
// The same constructor measures and uses, so no size is written twice.
#pragma once

#include <cstddef>

#include "device/cpu/kernel.h"

namespace lily::cpu::LILY_ISA {

// Cuts memory into pieces that start on cache lines. Without memory it only counts.
class Scratch {
 public:
  explicit Scratch(std::byte* memory) : memory_(memory) {}

  template <typename T>
  T* take(std::size_t count) {
    T* piece = memory_ ? reinterpret_cast<T*>(memory_ + bytes_) : nullptr;
    bytes_ += (count * sizeof(T) + 63) / 64 * 64;
    return piece;
  }
  std::size_t bytes() const { return bytes_; }  // taken so far

 private:
  std::byte* memory_;
  std::size_t bytes_ = 0;
};

// The scratch of a call, laid out.
template <typename Layout>
static inline Layout scratch_of(const KernelCall& call) {
  Scratch scratch(call.scratch);
  return Layout(call, scratch);
}

// Whether this thread's scratch already holds what the dispatch keeps there under `key`, not 0. From now on it does: the caller
// puts it there.
static inline bool is_ready(const KernelCall& call, std::uint32_t key) {
  const bool was_ready = *call.ready == key;
  *call.ready = key;
  return was_ready;
}

// KernelEntry::scratch_bytes of the kernels with that layout.
template <typename Layout>
static std::size_t scratch_bytes(const KernelCall& call) {
  Scratch scratch(nullptr);
  Layout(call, scratch);
  return scratch.bytes();
}

}  // namespace lily::cpu::LILY_ISA
