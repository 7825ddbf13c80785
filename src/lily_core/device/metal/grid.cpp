#include "device/metal/grid.h"

#include <algorithm>

#include "lily_grid.h"

namespace lily::metal {
namespace {

// In the order of docs/design/kernels.md. What a shader also needs to know is a constant of shaders/lily_grid.h.
constexpr Grid kGrids[] = {
    {"rms_norm", false, {LILY_RMS_NORM_ROWS, 1, 1}, LILY_RMS_NORM_THREADS},
    {"gdn_chunk", false, {1, 1, 1}, LILY_GDN_CHUNK_THREADS},
    {"gdn_scan", false, {LILY_GDN_SCAN_COLUMNS, 1, 1}, LILY_GDN_SCAN_THREADS},
    {"gated_norm", false, {1, 1, 1}, LILY_GATED_NORM_THREADS},
    {"moe_plan", false, {1, 1, 1}, LILY_MOE_PLAN_THREADS},
};

}  // namespace

std::span<const Grid> grids() { return kGrids; }

const Grid* find_grid(std::string_view op, bool is_tile) {
  const auto* found = std::ranges::find_if(kGrids, [&](const Grid& grid) { return grid.op == op && grid.is_tile == is_tile; });
  return found == std::end(kGrids) ? nullptr : found;
}

}  // namespace lily::metal
