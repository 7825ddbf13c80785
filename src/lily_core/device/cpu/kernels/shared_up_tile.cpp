// hs = silu(y Wgᵀ) · (y Wuᵀ): the shared expert's first product.
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void shared_up_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t hidden = call.model->hidden_size, width = call.model->shared_expert_intermediate_size;
  const float* y = buffer<const float>(call, 0);
  float* hs = buffer<float>(call, 7);
  const Weight gate = weight_at(call, 1), up = weight_at(call, 4);
  GemmScratch& scratch = gemm_scratch(call);
  for (std::uint32_t index = first; index < last; ++index) {
    const Tile t = tile_at(call, index);
    const std::uint32_t columns = t.x1 - t.x0, rows = t.y1 - t.y0;
    auto row_at = [&](std::uint32_t i) { return y + std::size_t(t.y0 + i) * hidden; };
    gemm(call.format, gate, hidden, t.x0, columns, row_at, rows, scratch, scratch.product[0]);
    gemm(call.format, up, hidden, t.x0, columns, row_at, rows, scratch, scratch.product[1]);
    for (std::uint32_t i = 0; i < rows; ++i)
      swiglu(scratch.product[0] + i * kGemmColumns, scratch.product[1] + i * kGemmColumns, columns,
             hs + std::size_t(t.y0 + i) * width + t.x0);
  }
}

void add_shared_up_tile(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = shared_up_tile, .access = "rrrrrrrw", .args_size = sizeof(RowsArgs),
                      .tile = {kGemmColumns / 2, kGemmRows, 1}, .scratch_bytes = gemm_scratch_bytes},
              LILY_FORMAT_NAMES("shared_up", "_f32_tile"));
}

}  // namespace lily::cpu::LILY_ISA
