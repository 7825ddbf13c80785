// Every op's registration, one a file, and the table of one instruction set.
#pragma once

#include "device/cpu/kernel.h"

namespace lily::cpu::LILY_ISA {

// In both programs, each with the forms that they need.
void add_embed(KernelTable& table);
void add_gdn_in(KernelTable& table);
void add_gdn_out(KernelTable& table);
void add_attn_in(KernelTable& table);
void add_attn_prep(KernelTable& table);
void add_attn_out(KernelTable& table);
void add_router(KernelTable& table);
void add_shared_up(KernelTable& table);
void add_experts_up(KernelTable& table);
void add_experts_down(KernelTable& table);
void add_lm_head(KernelTable& table);
void add_sample(KernelTable& table);

// In the step program only.
void add_gdn_step(KernelTable& table);
void add_attn_split(KernelTable& table);
void add_attn_combine(KernelTable& table);

// In the prefill program only.
void add_rms_norm(KernelTable& table);
void add_gdn_conv(KernelTable& table);
void add_gdn_chunk(KernelTable& table);
void add_gdn_scan(KernelTable& table);
void add_gated_norm(KernelTable& table);
void add_attn_prefill(KernelTable& table);
void add_shared_down(KernelTable& table);
void add_topk(KernelTable& table);
void add_moe_plan(KernelTable& table);
void add_moe_combine(KernelTable& table);

void add_all(KernelTable& table);

}  // namespace lily::cpu::LILY_ISA
