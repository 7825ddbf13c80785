// hs = silu(W_gate norm(x)) · (W_up norm(x)): the first half of the shared expert.
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

constexpr std::uint32_t kColumns = 16;  // of hs in a tile

static void shared_up(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t rows = args_of<RowsArgs>(call).rows, width = call.model->shared_expert_intermediate_size;
  std::byte* scratch = call.scratch;
  const Operand x = normed_operand(call, scratch, call.format, rows, buffer<const float>(call, 0), buffer<const float>(call, 1));
  float* hs = buffer<float>(call, 8);
  float gate[kMaxStepRows][kColumns], up[kMaxStepRows][kColumns];
  Product gates[kMaxStepRows], ups[kMaxStepRows];
  for (std::uint32_t r = 0; r < rows; ++r) gates[r] = {r, gate[r]}, ups[r] = {r, up[r]};
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    matvec(weight_at(call, 2), t.x0, t.x1 - t.x0, x, gates, rows);
    matvec(weight_at(call, 5), t.x0, t.x1 - t.x0, x, ups, rows);
    for (std::uint32_t r = 0; r < rows; ++r) swiglu(gate[r], up[r], t.x1 - t.x0, hs + std::size_t(r) * width + t.x0);
  }
}

void add_shared_up(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = shared_up, .access = "rrrrrrrrw", .args_size = sizeof(RowsArgs),
                      .tile = {kColumns, 0, 1}, .scratch_bytes = normed_operand_bytes},
              LILY_FORMAT_NAMES("shared_up", "_f32"));
}

}  // namespace lily::cpu::LILY_ISA
