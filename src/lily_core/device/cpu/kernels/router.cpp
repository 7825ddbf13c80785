// router_logits | shared_gate = W norm(x): a logit per expert and the logit of the shared expert's gate.
#include "device/cpu/kernels/matvec.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

static void router(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t experts = call.model->num_experts;
  const Section sections[] = {{buffer<float>(call, 5), 0, experts}, {buffer<float>(call, 6), experts, experts + 1}};
  std::byte* scratch = call.scratch;
  const Operand x = normed_operand(call, scratch, call.format, args_of<RowsArgs>(call).rows, buffer<const float>(call, 0),
                                   buffer<const float>(call, 1));
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    matvec_sections(weight_at(call, 2), t.x0, t.x1, x, sections, 2);
  }
}

void add_router(KernelTable& table) {
  add_formats(table, {.name = nullptr, .run = router, .access = "rrrrrww", .args_size = sizeof(RowsArgs), .tile = {8, 0, 1},
                      .scratch_bytes = normed_operand_bytes},
              LILY_FORMAT_NAMES("router", "_f32"));
}

}  // namespace lily::cpu::LILY_ISA
