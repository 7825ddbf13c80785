// Walks the blocks of moe_plan: the rows of one expert after the other, as the grouped products of prefill want them.
#pragma once

#include "device/cpu/kernels/gemm.h"

namespace lily::cpu::LILY_ISA {

// A tile takes a slice of the experts, not a stretch of the block axis: the axis ends in sentinels, and an expert's rows stay
// together, so its weights are unpacked once. Experts of a slice are neighbours: what gemm asks of memory behind the weights of
// one are those of the next.
constexpr std::uint32_t kBlocksPerSlice = 4;

struct ExpertRun {
  std::uint32_t expert, begin, end;  // positions in `order`, at most kGemmRows
};

// Calls work(run) for every run of rows of the tile's experts.
template <typename Work>
static inline void for_expert_runs(const KernelCall& call, const Tile& tile, const ExpertBlock* blocks, Work work) {
  const std::uint32_t count = call.extent[1];
  const std::uint32_t slices = (count + kBlocksPerSlice - 1) / kBlocksPerSlice, slice = tile.y0 / kBlocksPerSlice;
  for (std::uint32_t i = 0; i < count && blocks[i].expert != LILY_NO_EXPERT;) {
    ExpertRun run = {blocks[i].expert, blocks[i].begin, blocks[i].end};
    for (++i; i < count && blocks[i].expert == run.expert && blocks[i].end - run.begin <= kGemmRows; ++i) run.end = blocks[i].end;
    if (std::uint64_t{run.expert} * slices / call.model->num_experts == slice) work(run);
  }
}

}  // namespace lily::cpu::LILY_ISA
