// x += Σ_slots weight · d + sigmoid(shared_gate) · s: the MoE block's sum, added to the residual.
#include "device/cpu/kernels/activation.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void moe_combine(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::size_t hidden = call.model->hidden_size, k = call.model->num_experts_per_tok;
  const float* d = buffer<const float>(call, 0);
  const float* topk_weights = buffer<const float>(call, 1);
  const float* s = buffer<const float>(call, 2);
  const float* shared_gate = buffer<const float>(call, 3);
  float* x = buffer<float>(call, 4);
  for (std::uint32_t index = first; index < last; ++index) {
    const Tile t = tile_at(call, index);
    for (std::size_t row = t.x0; row < t.x1; ++row) {
      const float shared_weight = sigmoid(shared_gate[row]);
      // hidden_size is a multiple of a quantisation group, so of the lanes.
      for (std::size_t i = 0; i < hidden; i += kLanes) {
        Vf total = {};
        for (std::size_t a = row * k; a < (row + 1) * k; ++a) total += topk_weights[a] * loadf(d + a * hidden + i);
        total += shared_weight * loadf(s + row * hidden + i);
        storef(x + row * hidden + i, loadf(x + row * hidden + i) + total);
      }
    }
  }
}

void add_moe_combine(KernelTable& table) {
  add_kernel(table, {.op = "moe_combine", .run = moe_combine, .tile = {8, 1, 1}});
}

}  // namespace lily::cpu::LILY_ISA
