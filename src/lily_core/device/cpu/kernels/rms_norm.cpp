// y = g x / sqrt(mean(x²) + eps)
#include "device/cpu/kernels/norm.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void rms_norm(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t width = call.model->hidden_size;
  const float* x = buffer<const float>(call, 0);
  const float* gain = buffer<const float>(call, 1);
  float* y = buffer<float>(call, 2);
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    for (std::uint32_t row = t.x0; row < t.x1; ++row)
      norm_row(x + std::size_t(row) * width, gain, width, call.model->rms_norm_eps, y + std::size_t(row) * width);
  }
}

void add_rms_norm(KernelTable& table) {
  add_kernel(table, {.op = "rms_norm", .run = rms_norm, .tile = {8, 1, 1}});
}

}  // namespace lily::cpu::LILY_ISA
