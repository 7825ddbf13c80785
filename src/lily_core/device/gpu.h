// How programs are cut for a GPU, whatever its maker (docs/design/metal.md, "Shapes").
#pragma once

#include <cstdint>

#include "device/device.h"

namespace lily {

// Of a GPU that may hold `memory_bytes` at once.
inline DeviceTraits gpu_traits(std::uint64_t memory_bytes) {
  constexpr std::uint64_t kRoomy = std::uint64_t{32} << 30;
  return {.memory_bytes = memory_bytes,
          // A row takes 8 of 256 experts, whose tiles have 32 rows: 512 tokens fill half of a tile, 1,024 all of it.
          .chunk_tokens = memory_bytes >= kRoomy ? 1024u : 512u,
          // Every core has a split from 1,000 tokens on; partial sums are a quarter of the keys and values that it reads.
          .keys_per_split = 64,
          // 0.08 s of the slowest one, whose matrix units reach 1 TFLOP/s.
          .attention_flops = 8e10};
}

}  // namespace lily
