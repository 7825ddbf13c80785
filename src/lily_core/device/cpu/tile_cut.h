// How a dispatch is cut into tiles.
#pragma once

#include "device/cpu/kernel.h"

namespace lily::cpu {

// Sets the tile of `call`, whose extent is known, and returns the number of tiles.
std::uint32_t cut_into_tiles(const KernelEntry& entry, std::uint32_t threads, KernelCall& call);

}  // namespace lily::cpu
