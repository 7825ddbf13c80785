// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a random word per (key, counter).
#pragma once

#include <metal_stdlib>

using namespace metal;

// The first of the four words for counter (counter, 0, 0, 0).
static inline uint philox(uint key0, uint key1, uint counter) {
  uint c0 = counter, c1 = 0u, c2 = 0u, c3 = 0u;
  for (uint round = 0; round < 10u; ++round) {
    const ulong a = (ulong)0xD2511F53u * c0, b = (ulong)0xCD9E8D57u * c2;
    c0 = uint(b >> 32u) ^ c1 ^ key0;
    c1 = uint(b);
    c2 = uint(a >> 32u) ^ c3 ^ key1;
    c3 = uint(a);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c0;
}
