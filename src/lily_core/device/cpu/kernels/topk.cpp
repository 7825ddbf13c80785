// The router's choice for every row of a chunk: ids and weights of the experts.
#include "device/cpu/kernels/topk.h"

#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void topk(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::size_t experts = call.model->num_experts, k = call.model->num_experts_per_tok;
  const float* router_logits = buffer<const float>(call, 0);
  std::uint32_t* topk_ids = buffer<std::uint32_t>(call, 1);
  float* topk_weights = buffer<float>(call, 2);
  for (std::uint32_t index = first; index < last; ++index) {
    const Tile t = tile_at(call, index);
    for (std::size_t row = t.x0; row < t.x1; ++row)
      choose_experts(router_logits + row * experts, experts, k, topk_ids + row * k, topk_weights + row * k);
  }
}

void add_topk(KernelTable& table) {
  add_kernel(table, {.op = "topk", .run = topk, .tile = {32, 1, 1}});
}

}  // namespace lily::cpu::LILY_ISA
