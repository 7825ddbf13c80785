// Exact widening of what checkpoints store: every BF16 and F16 value is an F32 value, every 4-bit code an 8-bit one.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model/tensor_source.h"

namespace lily {

inline float widen_bf16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

inline float widen_f16(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: fraction · 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 31 ? 255 : exponent + 112;  // infinity and NaN stay what they are
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

// `count` floats of type `dtype` (BF16, F16 or F32) at `from`, which may lie at any byte, to `to`.
inline void widen_floats(Dtype dtype, const std::byte* from, float* to, std::size_t count) {
  if (dtype == Dtype::kF32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i] = dtype == Dtype::kBF16 ? widen_bf16(bits) : widen_f16(bits);
  }
}

// 4-bit codes, two a byte with the lower one first, to one code a byte.
inline void widen_codes(const std::byte* from, std::byte* to, std::size_t packed_bytes) {
  for (std::size_t i = 0; i < packed_bytes; ++i) {
    to[2 * i] = from[i] & std::byte{0x0f};
    to[2 * i + 1] = from[i] >> 4;
  }
}

}  // namespace lily
