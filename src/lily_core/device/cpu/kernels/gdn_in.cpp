// qkv | z | b, a = W norm(x): all input projections of a Gated DeltaNet layer.
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void gdn_in(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const std::uint32_t qkv_end = model.conv_channels(), z_end = qkv_end + model.value_dim();
  const Section sections[] = {{buffer<float>(call, 5), 0, qkv_end},
                              {buffer<float>(call, 6), qkv_end, z_end},
                              {buffer<float>(call, 7), z_end, z_end + 2 * model.linear_num_value_heads}};
  std::byte* scratch = call.scratch;
  const Operand x = normed_operand(call, scratch, call.format, args_of<RowsArgs>(call).rows, buffer<const float>(call, 0),
                                   buffer<const float>(call, 1));
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    matvec_sections(weight_at(call, 2), t.x0, t.x1, x, sections, 3);
  }
}

void add_gdn_in(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = gdn_in, .access = "rrrrrwww", .args_size = sizeof(RowsArgs), .tile = {64, 0, 1},
                      .scratch_bytes = normed_operand_bytes},
              LILY_FORMAT_NAMES("gdn_in", "_f32"));
}

}  // namespace lily::cpu::LILY_ISA
