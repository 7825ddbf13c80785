// Sorts the assignments (row, slot) of a chunk by expert and cuts each expert's run into blocks: a stable counting sort in one
// threadgroup. Each simdgroup counts a stretch of the assignments on its own, so no order depends on atomics.
// Threadgroup memory: counts of 16 simdgroups · 512 experts · 2 bytes = 16,384, starts 2,048, sums 128: 18,560 in all. With more
// experts fewer simdgroups sort.
#include <metal_stdlib>
#include "lily_args.h"
#include "lily_grid.h"

using namespace metal;

constant constexpr uint kSimdgroups = LILY_MOE_PLAN_THREADS / 32;
constant constexpr uint kSorters = LILY_NUM_EXPERTS > 512 ? 8192 / LILY_NUM_EXPERTS : kSimdgroups;

// What the 32 assignments of a simdgroup's step have in common.
struct SameExpert {
  uint before;  // earlier ones of this lane's expert
  uint all;     // ones of this lane's expert, its own included
};

static inline SameExpert count_same(uint expert, uint lane) {
  SameExpert same = {0, 0};
  for (ushort i = 0; i < 32; ++i) {
    const uint equal = simd_shuffle(expert, i) == expert ? 1 : 0;
    same.all += equal;
    same.before += i < lane ? equal : 0;
  }
  return same;
}

kernel void moe_plan(device const uint* topk_ids [[buffer(0)]], device uint* order [[buffer(1)]],
                     device ExpertBlock* blocks [[buffer(2)]], constant RowsArgs& args [[buffer(3)]],
                     uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]]) {
  threadgroup ushort counts[kSorters * LILY_NUM_EXPERTS];  // of a sorter's stretch, per expert; then how many come before
  threadgroup uint starts[LILY_NUM_EXPERTS];               // where an expert's run begins
  threadgroup uint run_sums[kSimdgroups];                  // of 32 experts
  threadgroup uint block_sums[kSimdgroups];
  const uint assignments = args.rows * LILY_NUM_EXPERTS_PER_TOK;
  const uint stretch = (assignments + kSorters * 32 - 1) / (kSorters * 32) * 32;
  const uint begin = simdgroup * stretch, end = simdgroup < kSorters ? min(begin + stretch, assignments) : 0;
  threadgroup ushort* own_counts = counts + min(simdgroup, kSorters - 1) * LILY_NUM_EXPERTS;

  for (uint i = index; i < kSorters * LILY_NUM_EXPERTS; i += LILY_MOE_PLAN_THREADS) counts[i] = 0;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint a = begin + lane; a < end + lane; a += 32) {
    const uint expert = a < end ? topk_ids[a] : LILY_NO_EXPERT;
    const SameExpert same = count_same(expert, lane);
    if (expert != LILY_NO_EXPERT && same.before == 0) own_counts[expert] += ushort(same.all);
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  // A thread has one expert: its run and its blocks follow those of the experts before it.
  uint run_begin = 0, num_blocks = 0;
  for (uint first = 0; first < LILY_NUM_EXPERTS; first += LILY_MOE_PLAN_THREADS) {
    const uint expert = first + index;
    uint count = 0;
    for (uint sorter = 0; expert < LILY_NUM_EXPERTS && sorter < kSorters; ++sorter) {
      const uint here = counts[sorter * LILY_NUM_EXPERTS + expert];
      counts[sorter * LILY_NUM_EXPERTS + expert] = ushort(count);
      count += here;
    }
    const uint expert_blocks = (count + LILY_EXPERT_BLOCK - 1) / LILY_EXPERT_BLOCK;
    uint run = simd_prefix_exclusive_sum(count), block = simd_prefix_exclusive_sum(expert_blocks);
    if (lane == 31) {
      run_sums[simdgroup] = run + count;
      block_sums[simdgroup] = block + expert_blocks;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    run += run_begin;
    block += num_blocks;
    for (uint i = 0; i < kSimdgroups; ++i) {
      run += i < simdgroup ? run_sums[i] : 0;
      block += i < simdgroup ? block_sums[i] : 0;
      run_begin += run_sums[i];
      num_blocks += block_sums[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (expert < LILY_NUM_EXPERTS) starts[expert] = run;
    for (uint i = 0; i < expert_blocks; ++i) {
      blocks[block + i].expert = expert;
      blocks[block + i].begin = run + i * LILY_EXPERT_BLOCK;
      blocks[block + i].end = min(run + (i + 1) * LILY_EXPERT_BLOCK, run + count);
    }
  }
  const uint max_blocks = min(uint(LILY_NUM_EXPERTS), assignments) + assignments / LILY_EXPERT_BLOCK;
  for (uint i = num_blocks + index; i < max_blocks; i += LILY_MOE_PLAN_THREADS) {
    blocks[i].expert = LILY_NO_EXPERT;
    blocks[i].begin = assignments;
    blocks[i].end = assignments;
  }

  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint a = begin + lane; a < end + lane; a += 32) {
    const uint expert = a < end ? topk_ids[a] : LILY_NO_EXPERT;
    const SameExpert same = count_same(expert, lane);
    const uint before = expert != LILY_NO_EXPERT ? own_counts[expert] : 0;
    if (expert != LILY_NO_EXPERT) order[starts[expert] + before + same.before] = a;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (expert != LILY_NO_EXPERT && same.before == 0) own_counts[expert] = ushort(before + same.all);
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
