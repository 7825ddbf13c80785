// Barriers and operations over the 32 lanes of a simdgroup.
#pragma once

namespace metal {
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
}  // namespace metal
#if MSL_CPU
#include "msl/simdgroup_cpu.h"
#else
#include "msl/simdgroup_ptx.h"
#endif
