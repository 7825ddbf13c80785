// h = silu(y Wgᵀ) · (y Wuᵀ) of the chosen experts, one row per assignment, in the order of moe_plan.
#include "device/cpu/kernels/expert_runs.h"
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void experts_up_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const std::uint32_t hidden = model.hidden_size, width = model.moe_intermediate_size;
  const float* y = buffer<const float>(call, 0);
  const std::uint32_t* order = buffer<const std::uint32_t>(call, 1);
  const ExpertBlock* blocks = buffer<const ExpertBlock>(call, 2);
  const std::uint32_t* expert_slot = buffer<const std::uint32_t>(call, 3);
  float* h = buffer<float>(call, 10);
  StepFlags* flags = buffer<StepFlags>(call, 11);
  GemmScratch& scratch = gemm_scratch(call);
  for (std::uint32_t index = first; index < last; ++index) {
    const Tile t = tile_at(call, index);
    const std::uint32_t columns = t.x1 - t.x0;
    for_expert_runs(call, t, blocks, [&](const ExpertRun& run) {
      const std::uint32_t slot = expert_slot[run.expert], rows = run.end - run.begin;
      if (slot == LILY_NO_EXPERT) {
        __atomic_store_n(&flags->abort, 1u, __ATOMIC_RELAXED);
        return;
      }
      auto row_at = [&](std::uint32_t i) { return y + std::size_t(order[run.begin + i] / model.num_experts_per_tok) * hidden; };
      const Weight gate = stacked_weight(call, 4, slot, width, hidden), up = stacked_weight(call, 7, slot, width, hidden);
      gemm(call.format, gate, hidden, t.x0, columns, row_at, rows, scratch, scratch.product[0]);
      gemm(call.format, up, hidden, t.x0, columns, row_at, rows, scratch, scratch.product[1]);
      for (std::uint32_t i = 0; i < rows; ++i)
        swiglu(scratch.product[0] + i * kGemmColumns, scratch.product[1] + i * kGemmColumns, columns,
               h + std::size_t(run.begin + i) * width + t.x0);
    });
  }
}

void add_experts_up_tile(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = experts_up_tile, .access = "rrrrrrrrrrwb", .args_size = sizeof(RowsArgs),
                      .tile = {kGemmColumns, kBlocksPerSlice, 1}, .scratch_bytes = gemm_scratch_bytes},
              LILY_FORMAT_NAMES("experts_up", "_f32_tile"));
}

}  // namespace lily::cpu::LILY_ISA
