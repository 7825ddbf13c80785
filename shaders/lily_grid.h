// Shapes of threadgroups that a shader and src/lily_core/device/metal/grid.cpp must agree on. Threads are multiples of 32.
#pragma once

#define LILY_SIMD_WIDTH 32u  // threads of a simdgroup

// A simdgroup takes one row.
#define LILY_RMS_NORM_ROWS 4u
#define LILY_RMS_NORM_THREADS (LILY_RMS_NORM_ROWS * LILY_SIMD_WIDTH)
