// Shapes of threadgroups that a shader and src/lily_core/device/metal/grid.cpp must agree on. Threads are multiples of 32.
#pragma once

#define LILY_SIMD_WIDTH 32u  // threads of a simdgroup

// A simdgroup takes one row.
#define LILY_RMS_NORM_ROWS 4u
#define LILY_RMS_NORM_THREADS (LILY_RMS_NORM_ROWS * LILY_SIMD_WIDTH)

// Dense products of a chunk and those of a block of an expert's rows: rows of Y, rows of W (half of them gate's, half up's).
#define LILY_GEMM_ROWS 64u
#define LILY_GEMM_COLUMNS 64u
#define LILY_GEMM_GATE_UP_COLUMNS (LILY_GEMM_COLUMNS / 2u)
#define LILY_GEMM_THREADS 128u

#define LILY_GDN_CONV_SIMDGROUP_ROWS 4u  // of one key head, that a simdgroup walks
#define LILY_GDN_CONV_ROWS (4u * LILY_GDN_CONV_SIMDGROUP_ROWS)
#define LILY_GDN_CONV_THREADS (4u * LILY_SIMD_WIDTH)
#define LILY_GDN_CHUNK_THREADS 256u   // a simdgroup for every 8 of the 64 tokens
#define LILY_GDN_SCAN_COLUMNS 32u     // of one value head's state
#define LILY_GDN_SCAN_THREADS 256u    // a simdgroup for every 8 of the 64 tokens
#define LILY_GATED_NORM_THREADS 256u  // a row: its simdgroups share the heads
#define LILY_ATTN_PREFILL_ROWS 16u    // of the query heads of one KV head
#define LILY_ATTN_PREFILL_HEADS 4u    // query heads of a pass, at most
#define LILY_ATTN_PREFILL_THREADS 256u
#define LILY_TOPK_ROWS 4u  // a simdgroup each
#define LILY_TOPK_THREADS (LILY_TOPK_ROWS * LILY_SIMD_WIDTH)
#define LILY_MOE_PLAN_THREADS 512u
#define LILY_MOE_COMBINE_THREADS 256u  // a row

// Matrix products of a step: weight rows, or pairs of rows of gate and up, of a threadgroup. Kernels with few rows take small
// tiles, so that every core of the GPU has some; large ones take many, so that the prologue is paid rarely.
#define LILY_MATVEC_THREADS 256u
#define LILY_GDN_IN_ROWS 64u
#define LILY_GDN_OUT_ROWS 16u
#define LILY_ATTN_IN_ROWS 64u
#define LILY_ATTN_OUT_ROWS 16u
#define LILY_ROUTER_ROWS 8u
#define LILY_SHARED_UP_ROWS 8u
#define LILY_EXPERTS_UP_ROWS 32u
#define LILY_LM_HEAD_ROWS 256u
#define LILY_EXPERTS_DOWN_ROWS 16u
#define LILY_EXPERTS_DOWN_THREADS 128u

#define LILY_EMBED_THREADS 256u       // a row
#define LILY_GDN_STEP_COLUMNS 32u     // of one value head's state
#define LILY_GDN_STEP_THREADS 128u
#define LILY_ATTN_PREP_HEADS 4u       // a simdgroup each
#define LILY_ATTN_PREP_THREADS (LILY_ATTN_PREP_HEADS * LILY_SIMD_WIDTH)
#define LILY_ATTN_SPLIT_THREADS 256u    // a split of one KV head
#define LILY_ATTN_COMBINE_THREADS 128u  // a query head
#define LILY_SAMPLE_SCAN_THREADS 256u   // a block of LILY_SAMPLE_BLOCK tokens
#define LILY_SAMPLE_PICK_THREADS 512u   // a row
