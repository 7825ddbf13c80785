// router_logits | shared_gate = W norm(x): a logit per expert and the logit of the shared expert's gate.
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

// Buffers from `index` on.
static OutputParts<2> outputs(const KernelCall& call, int index) {
  return {{{buffer<float>(call, index), call.model->num_experts}, {buffer<float>(call, index + 1), 1}}};
}

static void router(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  matvec_parts(call, first, last, weight_at(call, 2), normed_operand(call), outputs(call, 5));
}

static void router_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  gemm_parts(call, first, last, call.model->hidden_size, outputs(call, 4));
}

void add_router(KernelTable& table) {
  add_formats(table, {.op = "router", .run = router, .tile = {8, 0, 1}, .scratch_bytes = scratch_bytes<NormedOperand>});
  add_formats(table, {.op = "router", .is_tile = true, .run = router_tile, .tile = {kGemmColumns / 2, kGemmRows, 1},
                      .scratch_bytes = scratch_bytes<GemmScratch>});
}

}  // namespace lily::cpu::LILY_ISA
