#include "device/metal/grid.h"

#include <algorithm>

#include "lily_args.h"
#include "lily_grid.h"

namespace lily::metal {
namespace {

// In the order of docs/design/kernels.md. What a shader also needs to know is a constant of shaders/lily_grid.h.
constexpr Grid kGrids[] = {
    {"embed", false, {1, 1, 1}, LILY_EMBED_THREADS, 1},
    {"embed", true, {1, 1, 1}, LILY_EMBED_THREADS, 1},
    {"gdn_in", false, {LILY_GDN_IN_ROWS, 0, 1}, LILY_MATVEC_THREADS, 1},
    {"gdn_in", true, {LILY_GEMM_COLUMNS, LILY_GEMM_ROWS, 1}, LILY_GEMM_THREADS, 1},
    {"gdn_step", false, {LILY_GDN_STEP_COLUMNS, 1, 1}, LILY_GDN_STEP_THREADS},
    {"gdn_out", false, {LILY_GDN_OUT_ROWS, 0, 1}, LILY_MATVEC_THREADS, 1},
    {"gdn_out", true, {LILY_GEMM_COLUMNS, LILY_GEMM_ROWS, 1}, LILY_GEMM_THREADS, 1},
    {"attn_in", false, {LILY_ATTN_IN_ROWS, 0, 1}, LILY_MATVEC_THREADS, 1},
    {"attn_in", true, {LILY_GEMM_COLUMNS, LILY_GEMM_ROWS, 1}, LILY_GEMM_THREADS, 1},
    {"attn_prep", false, {LILY_ATTN_PREP_HEADS, 1, 1}, LILY_ATTN_PREP_THREADS},
    {"attn_prep", true, {LILY_ATTN_PREP_HEADS, 1, 1}, LILY_ATTN_PREP_THREADS},
    {"attn_split", false, {1, 1, 1}, LILY_ATTN_SPLIT_THREADS},
    {"attn_combine", false, {1, 1, 1}, LILY_ATTN_COMBINE_THREADS},
    {"attn_out", false, {LILY_ATTN_OUT_ROWS, 0, 1}, LILY_MATVEC_THREADS, 1},
    {"attn_out", true, {LILY_GEMM_COLUMNS, LILY_GEMM_ROWS, 1}, LILY_GEMM_THREADS, 1},
    {"router", false, {LILY_ROUTER_ROWS, 0, 1}, LILY_MATVEC_THREADS, 1},
    {"router", true, {LILY_GEMM_COLUMNS, LILY_GEMM_ROWS, 1}, LILY_GEMM_THREADS, 1},
    {"shared_up", false, {LILY_SHARED_UP_ROWS, 0, 1}, LILY_MATVEC_THREADS, 1},
    {"shared_up", true, {LILY_GEMM_GATE_UP_COLUMNS, LILY_GEMM_ROWS, 1}, LILY_GEMM_THREADS, 1},
    {"experts_up", false, {LILY_EXPERTS_UP_ROWS, 1, 1}, LILY_MATVEC_THREADS, 1},
    {"experts_up", true, {LILY_GEMM_GATE_UP_COLUMNS, 1, 1}, LILY_GEMM_THREADS, 1},
    {"experts_down", false, {LILY_EXPERTS_DOWN_ROWS, 1, 1}, LILY_EXPERTS_DOWN_THREADS, 2},
    {"experts_down", true, {LILY_GEMM_COLUMNS, 1, 1}, LILY_GEMM_THREADS, 1},
    {"lm_head", false, {LILY_LM_HEAD_ROWS, 0, 1}, LILY_MATVEC_THREADS, 1},
    {"sample_scan", false, {LILY_SAMPLE_BLOCK, 1, 1}, LILY_SAMPLE_SCAN_THREADS},
    {"sample_pick", false, {1, 1, 1}, LILY_SAMPLE_PICK_THREADS},
    {"rms_norm", false, {LILY_RMS_NORM_ROWS, 1, 1}, LILY_RMS_NORM_THREADS},
    {"gdn_conv", false, {1, LILY_GDN_CONV_ROWS, 1}, LILY_GDN_CONV_THREADS},
    {"gdn_chunk", false, {1, 1, 1}, LILY_GDN_CHUNK_THREADS},
    {"gdn_scan", false, {LILY_GDN_SCAN_COLUMNS, 1, 1}, LILY_GDN_SCAN_THREADS},
    {"gated_norm", false, {1, 1, 1}, LILY_GATED_NORM_THREADS},
    {"attn_prefill", false, {1, LILY_ATTN_PREFILL_ROWS, LILY_ATTN_PREFILL_HEADS}, LILY_ATTN_PREFILL_THREADS},
    {"shared_down", true, {LILY_GEMM_COLUMNS, LILY_GEMM_ROWS, 1}, LILY_GEMM_THREADS, 1},
    {"topk", false, {LILY_TOPK_ROWS, 1, 1}, LILY_TOPK_THREADS},
    {"moe_plan", false, {1, 1, 1}, LILY_MOE_PLAN_THREADS},
    {"moe_combine", false, {1, 1, 1}, LILY_MOE_COMBINE_THREADS},
};

}  // namespace

std::span<const Grid> grids() { return kGrids; }

const Grid* find_grid(std::string_view op, bool is_tile) {
  const auto* found = std::ranges::find_if(kGrids, [&](const Grid& grid) { return grid.op == op && grid.is_tile == is_tile; });
  return found == std::end(kGrids) ? nullptr : found;
}

}  // namespace lily::metal
