// logits = W norm(x), for the rows that want them.
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static bool all_finite(const float* x, std::uint32_t count) {
  std::uint32_t worst = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t exponent = load<std::uint32_t>(x + i) & 0x7f800000u;
    worst = exponent > worst ? exponent : worst;
  }
  return worst != 0x7f800000u;
}

static void lm_head(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const ModelConstants& model = *call.model;
  const StepRow* step = buffer<const StepRow>(call, 0);
  const float* x = buffer<const float>(call, 1);
  const float* gain = buffer<const float>(call, 2);
  const Weight w = weight_at(call, 3);
  float* logits = buffer<float>(call, 6);
  NormedOperand normed = scratch_of<NormedOperand>(call);
  Product all[LILY_MAX_STEP_ROWS];
  const bool ready = is_ready(call, 1);
  std::uint32_t wanted = 0;
  for (std::uint32_t r = 0; r < normed.rows; ++r) {
    if (!step[r].wants_logits) continue;
    if (!ready) normed.set_normed_row(wanted, x + std::size_t(r) * model.hidden_size, gain);
    all[wanted] = {wanted, logits + std::size_t(step[r].timeline) * model.vocab_size};
    ++wanted;
  }
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    Product products[LILY_MAX_STEP_ROWS];
    for (std::uint32_t p = 0; p < wanted; ++p) products[p] = {all[p].row, all[p].y + t.x0};
    matvec({{w, t.x0}, t.x1 - t.x0, {w, t.x1}}, normed, products, wanted);
    for (std::uint32_t p = 0; p < wanted; ++p)
      if (!all_finite(products[p].y, t.x1 - t.x0)) __atomic_store_n(&buffer<StepFlags>(call, 7)->nan, 1u, __ATOMIC_RELAXED);
  }
}

void add_lm_head(KernelTable& table) {
  add_formats(table, {.op = "lm_head", .run = lm_head, .tile = {128, 0, 1}, .scratch_bytes = scratch_bytes<NormedOperand>});
}

}  // namespace lily::cpu::LILY_ISA
