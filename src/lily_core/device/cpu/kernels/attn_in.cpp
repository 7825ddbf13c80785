// q | gate | k | v = W norm(x): all input projections of an attention layer.
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

// Buffers from `index` on.
static OutputParts<4> outputs(const KernelCall& call, int index) {
  const ModelConstants& model = *call.model;
  const std::uint32_t query = model.num_attention_heads * model.head_dim, key = model.num_key_value_heads * model.head_dim;
  return {{{buffer<float>(call, index), query},
           {buffer<float>(call, index + 1), query},
           {buffer<float>(call, index + 2), key},
           {buffer<float>(call, index + 3), key}}};
}

static void attn_in(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  matvec_parts(call, first, last, weight_at(call, 2), normed_operand(call), outputs(call, 5));
}

static void attn_in_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  gemm_parts(call, first, last, call.model->hidden_size, outputs(call, 4));
}

void add_attn_in(KernelTable& table) {
  add_formats(table, {.op = "attn_in", .run = attn_in, .tile = {64, 0, 1}, .scratch_bytes = scratch_bytes<NormedOperand>});
  add_formats(table, {.op = "attn_in", .is_tile = true, .run = attn_in_tile, .tile = {kGemmColumns, kGemmRows, 1},
                      .scratch_bytes = scratch_bytes<GemmScratch>});
}

}  // namespace lily::cpu::LILY_ISA
