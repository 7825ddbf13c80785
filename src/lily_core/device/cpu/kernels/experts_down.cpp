// x += Σ weight · W_e h_e + sigmoid(shared_gate) · W hs: the second half of the chosen experts and of the shared one.
#include <cmath>

#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"
#include "device/cpu/kernels/topk.h"

namespace lily::cpu::LILY_ISA {

constexpr std::uint32_t kColumns = 64;  // of x in a tile

static void experts_down(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const std::uint32_t rows = args_of<RowsArgs>(call).rows, k = model.num_experts_per_tok, width = model.hidden_size;
  const std::uint32_t* ids = buffer<const std::uint32_t>(call, 1);
  const float* weights = buffer<const float>(call, 2);
  const std::uint32_t* expert_slot = buffer<const std::uint32_t>(call, 3);
  const float* shared_gate = buffer<const float>(call, 11);
  float* x = buffer<float>(call, 12);
  std::byte* scratch = call.scratch;
  const Operand h = plain_operand(scratch, call.format, rows * k, model.moe_intermediate_size, buffer<const float>(call, 0));
  const Operand hs = plain_operand(scratch, call.second_format, rows, model.shared_expert_intermediate_size,
                                   buffer<const float>(call, 7));
  // Each product has a place of its own and is summed in the order of the slots, so a row's result does not depend
  // on its neighbours.
  float* products = take_floats(scratch, std::size_t(rows) * k * kColumns);

  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    const std::uint32_t count = t.x1 - t.x0;
    for (std::uint32_t a = 0; a < rows * k; ++a) {
      const std::uint32_t slot = expert_slot[ids[a]];
      if (slot == LILY_NO_EXPERT || position_of(ids[a], ids, a) < a) continue;
      Product of_expert[kMaxStepRows];
      std::uint32_t n = 0;
      for (std::uint32_t b = a; b < rows * k; ++b)
        if (ids[b] == ids[a]) of_expert[n++] = {b, products + std::size_t(b) * kColumns};
      matvec(weight_at(call, 4), std::size_t(slot) * width + t.x0, count, h, of_expert, n);
    }
    float shared[kMaxStepRows][kColumns];
    Product of_shared[kMaxStepRows];
    for (std::uint32_t r = 0; r < rows; ++r) of_shared[r] = {r, shared[r]};
    matvec(weight_at(call, 8), t.x0, count, hs, of_shared, rows);

    for (std::uint32_t r = 0; r < rows; ++r) {
      const float gate = 1.0f / (1.0f + std::exp(-shared_gate[r]));
      float* total = shared[r];
      for (std::uint32_t j = 0; j < count; ++j) total[j] *= gate;
      for (std::uint32_t a = r * k; a < (r + 1) * k; ++a) {
        if (expert_slot[ids[a]] == LILY_NO_EXPERT) continue;  // experts_up has set the abort flag
        for (std::uint32_t j = 0; j < count; ++j) total[j] += weights[a] * products[std::size_t(a) * kColumns + j];
      }
      float* to = x + std::size_t(r) * width + t.x0;
      for (std::uint32_t j = 0; j < count; ++j) to[j] += total[j];
    }
  }
}

static std::size_t scratch_bytes(const ModelConstants& model, const void* args) {
  const std::uint32_t rows = static_cast<const RowsArgs*>(args)->rows, assignments = rows * model.num_experts_per_tok;
  return Operand::bytes(assignments, model.moe_intermediate_size) + Operand::bytes(rows, model.shared_expert_intermediate_size) +
         scratch_floats(std::size_t(assignments) * kColumns);
}

void add_experts_down(KernelTable& table) {
  // [experts' format][shared expert's format]
  static const char* const names[4][4] = {
      LILY_FORMAT_NAMES("experts_down_q4g64", "_f32"), LILY_FORMAT_NAMES("experts_down_q4g64w", "_f32"),
      LILY_FORMAT_NAMES("experts_down_q8g64", "_f32"), LILY_FORMAT_NAMES("experts_down_q8g64w", "_f32")};
  for (int experts = 0; experts < 4; ++experts)
    for (int shared = 0; shared < 4; ++shared)
      add_kernel(table, {.name = names[experts][shared], .run = experts_down, .access = "rrrrrrrrrrrrb",
                         .args_size = sizeof(RowsArgs), .tile = {kColumns, 0, 1}, .scratch_bytes = scratch_bytes,
                         .format = Format(experts), .second_format = Format(shared)});
}

}  // namespace lily::cpu::LILY_ISA
