// The router's choice for every row of a chunk: ids and weights of the experts. A simdgroup takes a row.
#include "lily_args.h"
#include "lily_grid.h"
#include "lily_topk.h"

static_assert(LILY_NUM_EXPERTS_PER_TOK <= LILY_SIMD_WIDTH, "a lane keeps one choice");

kernel void topk(device const float* router_logits [[buffer(0)]], device uint* topk_ids [[buffer(1)]],
                 device float* topk_weights [[buffer(2)]], constant RowsArgs& args [[buffer(3)]],
                 uint group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                 uint lane [[thread_index_in_simdgroup]]) {
  const uint row = group * LILY_TOPK_ROWS + simdgroup;
  if (row >= args.rows) return;
  Router router;
  router.load(router_logits + (ulong)row * LILY_NUM_EXPERTS, lane);
  Chosen own = router.take(lane);  // lane i keeps the i-th choice
  const float largest = own.logit;
  for (uint i = 1; i < LILY_NUM_EXPERTS_PER_TOK; ++i) {
    const Chosen next = router.take(lane);
    if (lane == i) own = next;
  }
  const float weight = lane < LILY_NUM_EXPERTS_PER_TOK ? exp(own.logit - largest) : 0.0f;
  const float total = simd_sum(weight);
  if (lane < LILY_NUM_EXPERTS_PER_TOK) {
    topk_ids[row * LILY_NUM_EXPERTS_PER_TOK + lane] = own.id;
    topk_weights[row * LILY_NUM_EXPERTS_PER_TOK + lane] = weight / total;
  }
}
