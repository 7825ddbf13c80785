// q = rope(norm(q)) in place; k = rope(norm(k)) and v go into the row's page. A simdgroup has one head.
#include "lily_args.h"
#include "lily_kv.h"
#include "lily_math.h"

#define LILY_HALF_ROTARY (LILY_ROTARY_DIM / 2u)

// What fraction of a turn position * frequency is, in [-1/2, 1/2). The frequency, in turns, comes in two floats; the product is
// exact in 2^-56 of a turn, because one in f32 is off by thousandths at the far end of the context.
static inline float turn_of(uint position, float high, float low) {
  const long frequency = long(high * 72057594037927936.0f) + long(low * 72057594037927936.0f);
  const long fraction = long((ulong(frequency) * position) << 8u);
  return float(fraction) * 5.421010862427522e-20f;
}

// The head `from` becomes `to`: normed with `gain`, its first LILY_ROTARY_DIM elements rotated in pairs (j, j + half).
static inline void prepare_head(device const half* from, device const float* gain, device const float2* rope, uint position,
                                device half* to, threadgroup float* normed, uint lane) {
  float sum = 0.0f;
  for (uint i = lane; i < LILY_HEAD_DIM; i += LILY_SIMD_WIDTH) sum += float(from[i]) * float(from[i]);
  const float scale = rsqrt(simd_sum(sum) / float(LILY_HEAD_DIM) + LILY_RMS_NORM_EPS);
  for (uint i = lane; i < LILY_HEAD_DIM; i += LILY_SIMD_WIDTH) normed[i] = float(from[i]) * scale * gain[i];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = lane; i < LILY_HEAD_DIM; i += LILY_SIMD_WIDTH) {
    float value = normed[i];
    if (i < LILY_ROTARY_DIM) {
      const float2 frequency = rope[i % LILY_HALF_ROTARY];
      const float angle = 6.283185307179586f * turn_of(position, frequency.x, frequency.y);
      const float other = i < LILY_HALF_ROTARY ? -normed[i + LILY_HALF_ROTARY] : normed[i - LILY_HALF_ROTARY];
      value = value * precise::cos(angle) + other * precise::sin(angle);
    }
    to[i] = poisoned_half(value);  // a score of -inf would hide an infinite key
  }
}

// The buffers of both forms.
struct Buffers {
  device half* q;
  device const half* k;
  device const half* v;
  device const float* q_gain;
  device const float* k_gain;
  device const float2* rope;
  device const uint* page_table;
  device half* kv;

  // Head `head` of row `row`; heads behind the query heads are those of k and v.
  void prepare(uint row, uint head, uint position, uint page_begin, uint layer, threadgroup float* normed,
               uint lane) const thread {
    if (head < LILY_NUM_ATTENTION_HEADS) {
      device half* at = q + (row * LILY_NUM_ATTENTION_HEADS + head) * LILY_HEAD_DIM;
      prepare_head(at, q_gain, rope, position, at, normed, lane);
    } else if (head < LILY_NUM_ATTENTION_HEADS + LILY_NUM_KEY_VALUE_HEADS) {
      const uint kv_head = head - LILY_NUM_ATTENTION_HEADS;
      const uint from = (row * LILY_NUM_KEY_VALUE_HEADS + kv_head) * LILY_HEAD_DIM;
      device half* key = kv + key_row(page_table, page_begin, position, layer, kv_head);
      prepare_head(k + from, k_gain, rope, position, key, normed, lane);
      device half* value = key + LILY_VALUE_ROWS;
      for (uint i = lane; i < LILY_HEAD_DIM; i += LILY_SIMD_WIDTH) value[i] = poisoned_half(float(v[from + i]));
    }
  }
};

kernel void attn_prep(device const StepRow* step [[buffer(0)]], device half* q [[buffer(1)]], device const half* k [[buffer(2)]],
                      device const half* v [[buffer(3)]], device const float* q_gain [[buffer(4)]],
                      device const float* k_gain [[buffer(5)]], device const float2* rope [[buffer(6)]],
                      device const uint* page_table [[buffer(7)]], device half* kv [[buffer(8)]],
                      constant LayerArgs& args [[buffer(9)]], uint3 group [[threadgroup_position_in_grid]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float normed[LILY_ATTN_PREP_HEADS * LILY_HEAD_DIM];
  const uint row = group.y, head = group.x * LILY_ATTN_PREP_HEADS + simdgroup;
  if (row >= args.rows) return;
  const Buffers buffers = {q, k, v, q_gain, k_gain, rope, page_table, kv};
  buffers.prepare(row, head, step[row].position, step[row].page_begin, args.layer, normed + simdgroup * LILY_HEAD_DIM, lane);
}

// Row i of a chunk is i positions behind its first.
kernel void attn_prep_tile(device const StepRow* step [[buffer(0)]], device half* q [[buffer(1)]],
                           device const half* k [[buffer(2)]], device const half* v [[buffer(3)]],
                           device const float* q_gain [[buffer(4)]], device const float* k_gain [[buffer(5)]],
                           device const float2* rope [[buffer(6)]], device const uint* page_table [[buffer(7)]],
                           device half* kv [[buffer(8)]], constant LayerArgs& args [[buffer(9)]],
                           uint3 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                           uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float normed[LILY_ATTN_PREP_HEADS * LILY_HEAD_DIM];
  const uint row = group.y, head = group.x * LILY_ATTN_PREP_HEADS + simdgroup;
  if (row >= args.rows) return;
  const Buffers buffers = {q, k, v, q_gain, k_gain, rope, page_table, kv};
  buffers.prepare(row, head, step->position + row, step->page_begin, args.layer, normed + simdgroup * LILY_HEAD_DIM, lane);
}
