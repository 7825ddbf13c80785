// x = row of the embedding that belongs to the token, dequantised
#include "lily_args.h"
#include "lily_quant.h"

typedef Weight<LILY_WEIGHT_BITS, LILY_WEIGHT_WIDE, LILY_HIDDEN_SIZE> Embedding;

// Row `token` by all threads of a threadgroup.
static inline void embed_row(Embedding weight, uint token, device float4* x, uint index) {
  constexpr uint kQuads = Embedding::kCodesPerWord / 4u;
  for (uint quad = index; quad < LILY_HIDDEN_SIZE / 4u; quad += LILY_EMBED_THREADS) {
    const uint word = quad / kQuads;
    const float2 pair = weight.pair(token, word);
    x[quad] = pair.x * Codes<LILY_WEIGHT_BITS>::quad(weight.word(token, word), quad % kQuads) + pair.y;
  }
}

kernel void embed(device const StepRow* step [[buffer(0)]], device const uint* tokens [[buffer(1)]],
                  device const uint4* codes [[buffer(2)]], device const WeightPair* scales [[buffer(3)]],
                  device const WeightPair* biases [[buffer(4)]], device float* x [[buffer(5)]],
                  constant RowsArgs& args [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],
                  uint index [[thread_index_in_threadgroup]]) {
  const Embedding weight = {codes, scales, biases};
  const uint row = group.x;
  if (row < args.rows) embed_row(weight, tokens[step[row].token_slot], (device float4*)(x + row * LILY_HIDDEN_SIZE), index);
}

kernel void embed_tile(device const uint* tokens [[buffer(0)]], device const uint4* codes [[buffer(1)]],
                       device const WeightPair* scales [[buffer(2)]], device const WeightPair* biases [[buffer(3)]],
                       device float* x [[buffer(4)]], constant RowsArgs& args [[buffer(5)]],
                       uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]]) {
  const Embedding weight = {codes, scales, biases};
  const uint row = group.x;
  if (row < args.rows) embed_row(weight, tokens[row], (device float4*)(x + row * LILY_HIDDEN_SIZE), index);
}
