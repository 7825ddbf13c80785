// Sorts the assignments (row, slot) of a chunk by expert and cuts each expert's run into blocks.
#include "device/cpu/kernels/scratch.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {

struct PlanScratch {
  PlanScratch(const KernelCall& call, Scratch& scratch) : next(scratch.take<std::uint32_t>(call.model->num_experts)) {}

  std::uint32_t* next;  // [E]: where the expert's next assignment goes
};

// A counting sort: stable, so an expert's assignments stay in order. One tile: it is a few operations per assignment.
static void moe_plan(const KernelCall& call, std::uint32_t, std::uint32_t) {
  const std::uint32_t experts = call.model->num_experts;
  const std::uint32_t assignments = args_of<RowsArgs>(call).rows * call.model->num_experts_per_tok;
  const std::uint32_t* topk_ids = buffer<const std::uint32_t>(call, 0);
  std::uint32_t* order = buffer<std::uint32_t>(call, 1);
  ExpertBlock* blocks = buffer<ExpertBlock>(call, 2);
  const auto [next] = scratch_of<PlanScratch>(call);
  for (std::uint32_t e = 0; e < experts; ++e) next[e] = 0;
  for (std::uint32_t a = 0; a < assignments; ++a) ++next[topk_ids[a]];

  const std::uint32_t max_blocks = call.model->max_expert_blocks(args_of<RowsArgs>(call).rows);
  std::uint32_t num_blocks = 0, begin = 0;
  for (std::uint32_t e = 0; e < experts; ++e) {
    const std::uint32_t end = begin + next[e];
    next[e] = begin;
    for (; begin < end; ++num_blocks) {
      const std::uint32_t block_end = end - begin < LILY_EXPERT_BLOCK ? end : begin + LILY_EXPERT_BLOCK;
      blocks[num_blocks] = {e, begin, block_end};
      begin = block_end;
    }
  }
  for (; num_blocks < max_blocks; ++num_blocks) blocks[num_blocks] = {LILY_NO_EXPERT, assignments, assignments};
  for (std::uint32_t a = 0; a < assignments; ++a) order[next[topk_ids[a]]++] = a;
}

void add_moe_plan(KernelTable& table) {
  add_kernel(table, {.op = "moe_plan", .run = moe_plan, .tile = {1, 1, 1},
                     .scratch_bytes = scratch_bytes<PlanScratch>});
}

}  // namespace lily::cpu::LILY_ISA
