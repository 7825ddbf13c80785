// Shapes of threadgroups that a shader and src/lily_core/device/metal/grid.cpp must agree on. Threads are multiples of 32.
#pragma once

#define LILY_SIMD_WIDTH 32u  // threads of a simdgroup

// A simdgroup takes one row.
#define LILY_RMS_NORM_ROWS 4u
#define LILY_RMS_NORM_THREADS (LILY_RMS_NORM_ROWS * LILY_SIMD_WIDTH)

#define LILY_GDN_CHUNK_THREADS 256u  // a simdgroup for every 8 of the 64 tokens
#define LILY_GDN_SCAN_COLUMNS 32u
#define LILY_GDN_SCAN_THREADS 256u
#define LILY_GATED_NORM_THREADS 256u  // a row: its simdgroups share the heads
#define LILY_MOE_PLAN_THREADS 512u
