// y = norm · o / sqrt(mean(o²) + eps) · silu(z), per value head
#include "device/cpu/kernels/norm.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void gated_norm(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t heads = call.model->linear_num_value_heads, width = call.model->linear_value_head_dim;
  const float* gain = buffer<const float>(call, 2);
  for (std::uint32_t index = first; index < last; ++index) {
    const Tile t = tile_at(call, index);
    for (std::size_t head = std::size_t(t.x0) * heads; head < std::size_t(t.x1) * heads; ++head) {
      const float* o = buffer<const float>(call, 0) + head * width;
      const float* z = buffer<const float>(call, 1) + head * width;
      float* y = buffer<float>(call, 3) + head * width;
      gated_norm_row(o, z, gain, width, call.model->rms_norm_eps, y);
    }
  }
}

void add_gated_norm(KernelTable& table) {
  add_kernel(table, {.op = "gated_norm", .run = gated_norm, .tile = {8, 1, 1}});
}

}  // namespace lily::cpu::LILY_ISA
