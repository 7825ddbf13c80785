// x += W y: the output projection of an attention layer, onto the residual stream.
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {
namespace {

std::uint32_t query_dim(const ModelConstants& model) { return model.num_attention_heads * model.head_dim; }

struct AttentionOutput : Operand {
  AttentionOutput(const KernelCall& call, Scratch& scratch)
      : Operand(call, scratch, call.format, args_of<RowsArgs>(call).rows, query_dim(*call.model)) {}
};

}  // namespace

static void attn_out(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  AttentionOutput y = scratch_of<AttentionOutput>(call);
  if (!is_ready(call, 1)) y.set_rows(buffer<const float>(call, 0));
  matvec_add(call, first, last, weight_at(call, 1), y, buffer<float>(call, 4));
}

static void attn_out_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  gemm_add(call, first, last, query_dim(*call.model));
}

void add_attn_out(KernelTable& table) {
  add_formats(table, {.op = "attn_out", .run = attn_out, .tile = {32, 0, 1}, .scratch_bytes = scratch_bytes<AttentionOutput>});
  add_formats(table, {.op = "attn_out", .is_tile = true, .run = attn_out_tile, .tile = {kGemmColumns, kGemmRows, 1},
                      .scratch_bytes = scratch_bytes<GemmScratch>});
}

}  // namespace lily::cpu::LILY_ISA
