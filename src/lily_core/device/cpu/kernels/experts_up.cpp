// h = silu(W_gate norm(x)) · (W_up norm(x)) for the k experts that the router chose for each row.
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"
#include "device/cpu/kernels/topk.h"

namespace lily::cpu::LILY_ISA {

constexpr std::uint32_t kColumns = 16;  // of h in a tile

static void experts_up(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const std::uint32_t rows = args_of<RowsArgs>(call).rows, k = model.num_experts_per_tok, width = model.moe_intermediate_size;
  const std::uint32_t* expert_slot = buffer<const std::uint32_t>(call, 3);
  float* h = buffer<float>(call, 10);
  std::byte* scratch = call.scratch;
  const Operand x = normed_operand(call, scratch, call.format, rows, buffer<const float>(call, 0), buffer<const float>(call, 1));
  std::uint32_t* ids = reinterpret_cast<std::uint32_t*>(take_floats(scratch, rows * k));
  float* weights = take_floats(scratch, rows * k);
  for (std::uint32_t r = 0; r < rows; ++r)
    choose_experts(buffer<const float>(call, 2) + std::size_t(r) * model.num_experts, model.num_experts, k, ids + r * k,
                   weights + r * k);

  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    const std::uint32_t count = t.x1 - t.x0;
    if (t.x0 == 0) {  // one tile writes what every range has worked out
      std::memcpy(buffer<std::uint32_t>(call, 11), ids, rows * k * sizeof(std::uint32_t));
      std::memcpy(buffer<float>(call, 12), weights, rows * k * sizeof(float));
    }
    for (std::uint32_t a = 0; a < rows * k; ++a) {
      if (position_of(ids[a], ids, a) < a) continue;  // an earlier row took this expert's weights along
      const std::uint32_t slot = expert_slot[ids[a]];
      if (slot == LILY_NO_EXPERT) {
        __atomic_store_n(&buffer<StepFlags>(call, 13)->abort, 1u, __ATOMIC_RELAXED);
        continue;
      }
      float gate[kMaxStepRows][kColumns], up[kMaxStepRows][kColumns];
      Product gates[kMaxStepRows], ups[kMaxStepRows];
      std::uint32_t assignments[kMaxStepRows], n = 0;
      for (std::uint32_t b = a; b < rows * k; ++b) {
        if (ids[b] != ids[a]) continue;
        gates[n] = {b / k, gate[n]}, ups[n] = {b / k, up[n]};
        assignments[n++] = b;
      }
      const std::size_t weight_row = std::size_t(slot) * width + t.x0;
      matvec(weight_at(call, 4), weight_row, count, x, gates, n);
      matvec(weight_at(call, 7), weight_row, count, x, ups, n);
      for (std::uint32_t j = 0; j < n; ++j) swiglu(gate[j], up[j], count, h + std::size_t(assignments[j]) * width + t.x0);
    }
  }
}

static std::size_t scratch_bytes(const ModelConstants& model, const void* args) {
  return normed_operand_bytes(model, args) +
         2 * scratch_floats(static_cast<const RowsArgs*>(args)->rows * model.num_experts_per_tok);
}

void add_experts_up(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = experts_up, .access = "rrrrrrrrrrwwwb", .args_size = sizeof(RowsArgs),
                      .tile = {kColumns, 0, 0}, .scratch_bytes = scratch_bytes},
              LILY_FORMAT_NAMES("experts_up", "_f32"));
}

}  // namespace lily::cpu::LILY_ISA
