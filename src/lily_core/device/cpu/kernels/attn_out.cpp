// x += W y: the output projection of an attention layer, onto the residual stream.
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void attn_out(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  std::byte* scratch = call.scratch;
  const Operand y = plain_operand(scratch, call.format, args_of<RowsArgs>(call).rows, model.num_attention_heads * model.head_dim,
                                  buffer<const float>(call, 0));
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    matvec_add(weight_at(call, 1), t.x0, t.x1, y, buffer<float>(call, 4), model.hidden_size);
  }
}

static std::size_t scratch_bytes(const ModelConstants& model, const void* args) {
  return Operand::bytes(static_cast<const RowsArgs*>(args)->rows, model.num_attention_heads * model.head_dim);
}

void add_attn_out(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = attn_out, .access = "rrrrb", .args_size = sizeof(RowsArgs), .tile = {32, 0, 1},
                      .scratch_bytes = scratch_bytes},
              LILY_FORMAT_NAMES("attn_out", "_f32"));
}

}  // namespace lily::cpu::LILY_ISA
