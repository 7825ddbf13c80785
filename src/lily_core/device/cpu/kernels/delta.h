// What the two kernels of the chunked delta rule share.
#pragma once

#include "device/cpu/kernels/product.h"

namespace lily::cpu::LILY_ISA {

constexpr std::uint32_t kChunk = 64;  // tokens per chunk, counted from the start of the prefill chunk

}  // namespace lily::cpu::LILY_ISA
