// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a random word per (key, counter).
#pragma once

#include <cstdint>

namespace lily::cpu::LILY_ISA {

// The first of the four words for counter (counter, 0, 0, 0).
static inline std::uint32_t philox(std::uint32_t key0, std::uint32_t key1, std::uint32_t counter) {
  std::uint32_t c[4] = {counter, 0, 0, 0};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t(0xD2511F53u) * c[0], b = std::uint64_t(0xCD9E8D57u) * c[2];
    const std::uint32_t next[4] = {std::uint32_t(b >> 32) ^ c[1] ^ key0, std::uint32_t(b), std::uint32_t(a >> 32) ^ c[3] ^ key1,
                                   std::uint32_t(a)};
    for (int i = 0; i < 4; ++i) c[i] = next[i];
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c[0];
}

}  // namespace lily::cpu::LILY_ISA
