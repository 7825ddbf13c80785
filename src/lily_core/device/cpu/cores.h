// How many cores this process may really use.
#pragma once

#include <cstdint>

namespace lily::cpu {

// Physical cores among the processors that the scheduler lets this process run on, no more than a container's quota of
// processor time is worth; at least 1.
std::uint32_t usable_cores();

}  // namespace lily::cpu
