// x += y Wᵀ: the output projection of an attention layer, added to the residual.
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void attn_out_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t width = call.model->num_attention_heads * call.model->head_dim, hidden = call.model->hidden_size;
  float* x = buffer<float>(call, 4);
  gemm_tiles(call, first, last, width,
             [&](std::uint32_t row, std::uint32_t column, std::uint32_t count, const float* values) {
               add_row(values, count, x + std::size_t(row) * hidden + column);
             });
}

void add_attn_out_tile(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = attn_out_tile, .access = "rrrrb", .args_size = sizeof(RowsArgs),
                      .tile = {kGemmColumns, kGemmRows, 1}, .scratch_bytes = gemm_scratch_bytes},
              LILY_FORMAT_NAMES("attn_out", "_f32_tile"));
}

}  // namespace lily::cpu::LILY_ISA
