// s = hs Wᵀ: the shared expert's second product.
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void shared_down_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const OutputPart parts[] = {{buffer<float>(call, 4), call.model->hidden_size}};
  gemm_tiles(call, first, last, call.model->shared_expert_intermediate_size,
             [&](std::uint32_t row, std::uint32_t column, std::uint32_t count, const float* values) {
               store_parts(parts, row, column, count, values);
             });
}

void add_shared_down_tile(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = shared_down_tile, .access = "rrrrw", .args_size = sizeof(RowsArgs),
                      .tile = {kGemmColumns, kGemmRows, 1}, .scratch_bytes = gemm_scratch_bytes},
              LILY_FORMAT_NAMES("shared_down", "_f32_tile"));
}

}  // namespace lily::cpu::LILY_ISA
