// x += W (norm · o / rms(o) · silu(z)): the gated norm and the output projection of a Gated DeltaNet layer.
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/norm.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void gdn_out(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const std::uint32_t rows = args_of<RowsArgs>(call).rows, width = model.value_dim(), head = model.linear_value_head_dim;
  const float* o = buffer<const float>(call, 0);
  const float* z = buffer<const float>(call, 1);
  const float* gain = buffer<const float>(call, 2);
  std::byte* scratch = call.scratch;
  Operand y(scratch, call.format, rows, width);
  float* gated = take_floats(scratch, width);
  for (std::uint32_t r = 0; r < rows; ++r, o += width, z += width) {
    for (std::uint32_t at = 0; at < width; at += head) gated_norm_row(o + at, z + at, gain, head, model.rms_norm_eps, gated + at);
    y.set_row(r, gated);
  }
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    matvec_add(weight_at(call, 3), t.x0, t.x1, y, buffer<float>(call, 6), model.hidden_size);
  }
}

static std::size_t scratch_bytes(const ModelConstants& model, const void* args) {
  return Operand::bytes(static_cast<const RowsArgs*>(args)->rows, model.value_dim()) + scratch_floats(model.value_dim());
}

void add_gdn_out(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = gdn_out, .access = "rrrrrrb", .args_size = sizeof(RowsArgs), .tile = {32, 0, 1},
                      .scratch_bytes = scratch_bytes},
              LILY_FORMAT_NAMES("gdn_out", "_f32"));
}

}  // namespace lily::cpu::LILY_ISA
