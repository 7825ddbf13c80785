// x += Σ_slots weight · d + sigmoid(shared_gate) · s: the MoE block's sum, added to the residual in the order of the slots.
#include "lily_args.h"
#include "lily_grid.h"
#include "lily_math.h"

kernel void moe_combine(device const float* d [[buffer(0)]], device const float* topk_weights [[buffer(1)]],
                        device const float* s [[buffer(2)]], device const float* shared_gate [[buffer(3)]],
                        device float* x [[buffer(4)]], constant RowsArgs& args [[buffer(5)]],
                        uint row [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]]) {
  constexpr uint kVectors = LILY_HIDDEN_SIZE / 4;
  if (row >= args.rows) return;
  const float shared_weight = sigmoid(shared_gate[row]);
  device const float* weights = topk_weights + row * LILY_NUM_EXPERTS_PER_TOK;
  device const float4* from = (device const float4*)d + ulong(row) * LILY_NUM_EXPERTS_PER_TOK * kVectors;
  for (uint i = index; i < kVectors; i += LILY_MOE_COMBINE_THREADS) {
    float4 sum = float4(0.0f);
    for (uint slot = 0; slot < LILY_NUM_EXPERTS_PER_TOK; ++slot) sum += weights[slot] * from[slot * kVectors + i];
    sum += shared_weight * ((device const float4*)s)[ulong(row) * kVectors + i];
    ((device float4*)x)[ulong(row) * kVectors + i] += sum;
  }
}
