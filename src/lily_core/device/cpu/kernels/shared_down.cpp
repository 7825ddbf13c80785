// s = W hs: the second half of the shared expert for a chunk. A step has it in experts_down.
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void shared_down_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const OutputParts<1> outputs = {{{buffer<float>(call, 4), call.model->hidden_size}}};
  gemm_parts(call, first, last, call.model->shared_expert_intermediate_size, outputs);
}

void add_shared_down(KernelTable& table) {
  add_formats(table, {.op = "shared_down", .is_tile = true, .run = shared_down_tile, .tile = {kGemmColumns, kGemmRows, 1},
                      .scratch_bytes = scratch_bytes<GemmScratch>});
}

}  // namespace lily::cpu::LILY_ISA
