#include "device/cpu/kernels/table.h"

#include "device/cpu/kernels/multiply_loop.h"

namespace lily::cpu::LILY_ISA {

void add_all(KernelTable& table) {
  add_embed(table);
  add_gdn_in(table);
  add_gdn_out(table);
  add_attn_in(table);
  add_attn_prep(table);
  add_attn_out(table);
  add_router(table);
  add_shared_up(table);
  add_experts_up(table);
  add_experts_down(table);
  add_lm_head(table);
  add_sample(table);

  add_gdn_step(table);
  add_attn_split(table);
  add_attn_combine(table);

  add_rms_norm(table);
  add_gdn_conv(table);
  add_gdn_chunk(table);
  add_gdn_scan(table);
  add_gated_norm(table);
  add_attn_prefill(table);
  add_shared_down(table);
  add_topk(table);
  add_moe_plan(table);
  add_moe_combine(table);

  set_multiply_loop(table, multiply_loop);
}

}  // namespace lily::cpu::LILY_ISA
