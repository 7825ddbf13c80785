// router_logits | shared_gate = y Wᵀ: a logit per expert and the logit of the shared expert's gate.
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void router_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const OutputPart parts[] = {{buffer<float>(call, 4), model.num_experts}, {buffer<float>(call, 5), 1}};
  gemm_tiles(call, first, last, model.hidden_size,
             [&](std::uint32_t row, std::uint32_t column, std::uint32_t count, const float* values) {
               store_parts(parts, row, column, count, values);
             });
}

void add_router_tile(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = router_tile, .access = "rrrrww", .args_size = sizeof(RowsArgs),
                      .tile = {kGemmColumns / 2, kGemmRows, 1}, .scratch_bytes = gemm_scratch_bytes},
              LILY_FORMAT_NAMES("router", "_f32_tile"));
}

}  // namespace lily::cpu::LILY_ISA
