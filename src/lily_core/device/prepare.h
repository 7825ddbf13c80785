// The plain form of a weight: codes, scales and biases as the checkpoint stores them, in the model's row order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/buffer.h"
#include "device/weight.h"

namespace lily {

// The tensor's bytes where they lie in the mapped file, which must outlive the buffer; nullptr when the device cannot use them
// there.
using MapTensor = std::function<std::unique_ptr<Buffer>(const TensorSource& tensor)>;

// Host memory of that name and length.
using Allocate = std::function<std::unique_ptr<Buffer>(std::string name, std::uint64_t length)>;

// The form that all parts of a weight share.
struct WeightForm {
  std::uint32_t bits = 4;
  bool wide_pairs = false;
};
WeightForm common_form(const HostWeight& weight);
std::string format_name(const WeightForm& form);

// Format q4g64, q4g64w, q8g64 or q8g64w (device/weight.h). Parts of different widths become 8-bit codes, and one F16 or F32 pair
// makes all pairs of the weight F32; both are exact. What needs neither, nor stacking or re-ordering, is used where it is mapped.
PreparedWeight prepare_weight(const HostWeight& weight, const MapTensor& map, const Allocate& allocate);

}  // namespace lily
