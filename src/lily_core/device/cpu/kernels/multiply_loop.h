// What bounds matrix products: multiplications and additions alone.
#pragma once

#include "device/cpu/kernel.h"

namespace lily::cpu::LILY_ISA {

// A MultiplyLoop; at most 65,536 rounds.
std::uint64_t multiply_loop(Operands operands, std::uint32_t rounds);

}  // namespace lily::cpu::LILY_ISA
