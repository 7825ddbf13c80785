// d = h Wᵀ of the chosen experts: rows of h in the order of moe_plan, rows of d by assignment.
#include "device/cpu/kernels/expert_runs.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void experts_down_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t hidden = call.model->hidden_size, width = call.model->moe_intermediate_size;
  const float* h = buffer<const float>(call, 0);
  const std::uint32_t* order = buffer<const std::uint32_t>(call, 1);
  const ExpertBlock* blocks = buffer<const ExpertBlock>(call, 2);
  const std::uint32_t* expert_slot = buffer<const std::uint32_t>(call, 3);
  float* d = buffer<float>(call, 7);
  GemmScratch& scratch = gemm_scratch(call);
  for (std::uint32_t index = first; index < last; ++index) {
    const Tile t = tile_at(call, index);
    const std::uint32_t columns = t.x1 - t.x0;
    for_expert_runs(call, t, blocks, [&](const ExpertRun& run) {
      const std::uint32_t slot = expert_slot[run.expert], rows = run.end - run.begin;
      if (slot == LILY_NO_EXPERT) return;  // experts_up has set flags.abort
      gemm(call.format, stacked_weight(call, 4, slot, hidden, width), width, t.x0, columns,
           [&](std::uint32_t i) { return h + std::size_t(run.begin + i) * width; }, rows, scratch, scratch.product[0]);
      for (std::uint32_t i = 0; i < rows; ++i)
        std::memcpy(d + std::size_t(order[run.begin + i]) * hidden + t.x0, scratch.product[0] + i * kGemmColumns,
                    columns * sizeof(float));
    });
  }
}

void add_experts_down_tile(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = experts_down_tile, .access = "rrrrrrrw", .args_size = sizeof(RowsArgs),
                      .tile = {kGemmColumns, kBlocksPerSlice, 1}, .scratch_bytes = gemm_scratch_bytes},
              LILY_FORMAT_NAMES("experts_down", "_f32_tile"));
}

}  // namespace lily::cpu::LILY_ISA
