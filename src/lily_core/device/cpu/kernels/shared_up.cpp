// hs = silu(W_gate norm(x)) · (W_up norm(x)): the first half of the shared expert.
#include "device/cpu/kernels/gemm.h"
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void shared_up(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t width = call.model->shared_expert_intermediate_size;
  float* hs = buffer<float>(call, 8);
  const Operand x = normed_operand(call);
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    Product products[LILY_MAX_STEP_ROWS];
    for (std::uint32_t r = 0; r < x.rows; ++r) products[r] = {r, hs + std::size_t(r) * width + t.x0};
    matvec_gate_up(weight_at(call, 2), weight_at(call, 5), t.x0, t.x1 - t.x0, t.x1, x, products, x.rows);
  }
}

static void shared_up_tile(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t hidden = call.model->hidden_size, width = call.model->shared_expert_intermediate_size;
  const float* y = buffer<const float>(call, 0);
  float* hs = buffer<float>(call, 7);
  GemmScratch scratch = scratch_of<GemmScratch>(call);
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    scratch.hold(t.y1 - t.y0, hidden);
    if (!is_ready(call, t.y0 + 1))
      scratch.set_rows([&](std::uint32_t row) { return y + std::size_t(t.y0 + row) * hidden; });
    gemm_gate_up(weight_at(call, 1), weight_at(call, 4), t.x0, t.x1, scratch, hs + std::size_t(t.y0) * width, width);
  }
}

void add_shared_up(KernelTable& table) {
  add_formats(table, {.op = "shared_up", .run = shared_up, .tile = {kGateUpColumns, 0, 1},
                      .scratch_bytes = scratch_bytes<NormedOperand>});
  add_formats(table, {.op = "shared_up", .is_tile = true, .run = shared_up_tile, .tile = {kGemmColumns / 2, kGemmRows, 1},
                      .scratch_bytes = scratch_bytes<GemmScratch>});
}

}  // namespace lily::cpu::LILY_ISA
