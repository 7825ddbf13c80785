// qkv | z | b, a = W norm(x): all input projections of a Gated DeltaNet layer.
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

// Buffers from `index` on.
static OutputParts<3> outputs(const KernelCall& call, int index) {
  const ModelConstants& model = *call.model;
  return {{{buffer<float>(call, index), model.conv_channels()},
           {buffer<float>(call, index + 1), model.value_dim()},
           {buffer<float>(call, index + 2), 2 * model.linear_num_value_heads}}};
}

static void gdn_in(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  matvec_parts(call, first, last, weight_at(call, 2), normed_operand(call), outputs(call, 5));
}

static void gdn_in_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  gemm_parts(call, first, last, call.model->hidden_size, outputs(call, 4));
}

void add_gdn_in(KernelTable& table) {
  add_formats(table, {.op = "gdn_in", .run = gdn_in, .tile = {64, 0, 1}, .scratch_bytes = scratch_bytes<NormedOperand>});
  add_formats(table, {.op = "gdn_in", .is_tile = true, .run = gdn_in_tile, .tile = {kGemmColumns, kGemmRows, 1},
                      .scratch_bytes = scratch_bytes<GemmScratch>});
}

}  // namespace lily::cpu::LILY_ISA
