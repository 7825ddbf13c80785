// 8x8 matrices of a simdgroup. Which lane holds which element is nobody's business but that of these files.
#pragma once

#if MSL_CPU
#include "msl/simdgroup_matrix_cpu.h"
#else
#include "msl/simdgroup_matrix_ptx.h"
#endif

namespace metal {
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
}  // namespace metal
