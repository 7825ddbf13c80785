#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

void add_all(KernelTable& table) {
  add_rms_norm(table);

  add_embed(table);
  add_gdn_in(table);
  add_gdn_out(table);
  add_attn_in(table);
  add_attn_out(table);
  add_router(table);
  add_shared_up(table);
  add_experts_up(table);
  add_experts_down(table);
  add_lm_head(table);
}

}  // namespace lily::cpu::LILY_ISA
