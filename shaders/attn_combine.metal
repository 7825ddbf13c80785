// y = softmax average over the splits * sigmoid(gate). A threadgroup has one query head.
#include "lily_args.h"
#include "lily_math.h"

kernel void attn_combine(device const float* partial [[buffer(0)]], device const half* gate [[buffer(1)]],
                         device half* y [[buffer(2)]], constant AttnCombineArgs& args [[buffer(3)]],
                         uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]]) {
  const uint row = group.y, head = row * LILY_NUM_ATTENTION_HEADS + group.x;
  if (row >= args.rows) return;
  constexpr uint kStride = LILY_HEAD_DIM + 2u;
  device const float* splits = partial + head * args.splits * kStride;
  float largest = LILY_MASKED_SCORE;
  for (uint s = 0; s < args.splits; ++s) largest = max(largest, splits[s * kStride + LILY_HEAD_DIM]);
  for (uint i = index; i < LILY_HEAD_DIM; i += LILY_ATTN_COMBINE_THREADS) {
    float total = 0.0f, sum = 0.0f;
    for (uint s = 0; s < args.splits; ++s) {
      device const float* split = splits + s * kStride;
      if (split[LILY_HEAD_DIM + 1u] == 0.0f) continue;  // an empty split has written nothing else
      const float weight = exp(split[LILY_HEAD_DIM] - largest);
      total += weight * split[LILY_HEAD_DIM + 1u];
      sum += weight * split[i];
    }
    y[head * LILY_HEAD_DIM + i] = half(sum / total * sigmoid(float(gate[head * LILY_HEAD_DIM + i])));
  }
}
