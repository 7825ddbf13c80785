// q | gate | k | v = W norm(x): all input projections of an attention layer.
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void attn_in(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const std::uint32_t q = model.num_attention_heads * model.head_dim, kv = model.num_key_value_heads * model.head_dim;
  const Section sections[] = {{buffer<float>(call, 5), 0, q},
                              {buffer<float>(call, 6), q, 2 * q},
                              {buffer<float>(call, 7), 2 * q, 2 * q + kv},
                              {buffer<float>(call, 8), 2 * q + kv, 2 * q + 2 * kv}};
  std::byte* scratch = call.scratch;
  const Operand x = normed_operand(call, scratch, call.format, args_of<RowsArgs>(call).rows, buffer<const float>(call, 0),
                                   buffer<const float>(call, 1));
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    matvec_sections(weight_at(call, 2), t.x0, t.x1, x, sections, 4);
  }
}

void add_attn_in(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = attn_in, .access = "rrrrrwwww", .args_size = sizeof(RowsArgs), .tile = {64, 0, 1},
                      .scratch_bytes = normed_operand_bytes},
              LILY_FORMAT_NAMES("attn_in", "_f32"));
}

}  // namespace lily::cpu::LILY_ISA
