// How many cores this process may really use, and which of them lie at the same memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lily::cpu {

using Processors = std::vector<std::uint32_t>;  // the system's numbers, ascending

// Where Linux describes processors and NUMA nodes.
inline constexpr const char* kSystemFolder = "/sys/devices/system";

// Physical cores among the processors that the scheduler lets this process run on, no more than a container's quota of
// processor time is worth; at least 1.
std::uint32_t usable_cores();

// Those that the scheduler lets the calling thread run on; none where the system does not tell.
Processors allowed_processors();

// For each of `threads` threads the processors to keep to, so that memory it touches first lies where it runs: those allowed of
// one NUMA node. Neighbours share a node, and nodes have threads in proportion to their cores. Nothing where the allowed
// processors lie on one node, or `folder` (kSystemFolder, or one like it) does not tell.
std::vector<Processors> processors_of_threads(const std::string& folder, const Processors& allowed, std::uint32_t threads);

}  // namespace lily::cpu
