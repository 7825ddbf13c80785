// The plain form of a weight: codes, scales and biases as the checkpoint stores them, in the model's row order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/buffer.h"
#include "device/weight.h"

namespace lily::cpu {

// Bytes of a mapped file, which must outlive the buffer. Read only, whatever the type says.
class MappedBuffer final : public Buffer {
 public:
  MappedBuffer(std::string name, const std::byte* address, std::uint64_t length)
      : Buffer(std::move(name), length), address_(address) {}
  void* contents() override { return const_cast<std::byte*>(address_); }

 private:
  const std::byte* address_;
};

// Whether weights may be used where they lie in the file.
enum class Mapping { kWhereAligned, kNever };

// Host memory of that name and length.
using Allocate = std::function<std::unique_ptr<Buffer>(std::string name, std::uint64_t length)>;

// Format q4g64, q4g64w, q8g64 or q8g64w (device/weight.h). Parts of different widths become 8-bit codes, and one F16 or F32 pair
// makes all pairs of the weight F32; both are exact. What needs neither, nor stacking or re-ordering, is used where it is mapped.
PreparedWeight prepare_weight(const HostWeight& weight, Mapping mapping, const Allocate& allocate);

}  // namespace lily::cpu
