// How fast the processor multiplies: what a matrix product on the CPU device is measured by.
#pragma once

#include <string>
#include <string_view>

namespace lily::cpu {

// Operations a second, a multiplication and its addition being two, of the threads of a device with these debug switches
// together, on registers alone, with the instructions that it multiplies matrices of `dtype` by. "float16": of 16-bit integers
// with codes, "float32": of floats. The best of a few passes, 0.25 seconds in all.
//
// A product that multiplies one by one cannot be faster. Winograd's inner product (vnni_tile.h) makes two products of one
// multiplication, and is all by which lily's may be.
double multiply_rate(std::string_view dtype, const std::string& debug);

}  // namespace lily::cpu
