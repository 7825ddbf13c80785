// Attention of one KV head's queries over one stretch of keys: softmax numerator, largest score and denominator of that stretch.
//
// A simdgroup takes kHeads query heads and every kKeyGroups-th block of kKeys keys, and keeps a softmax of its own, so the loop
// has no barrier: 16 bytes a lane of each key and value, kHeads * D / 32 = 32 accumulators at D = 256. All query heads of the KV
// head are in the threadgroup: a row of K or V comes from memory once. Threadgroup memory: 12 KB for 8 heads of 256.
#include "lily_kv.h"
#include "lily_math.h"

constant constexpr uint kQueryHeads = LILY_NUM_ATTENTION_HEADS / LILY_NUM_KEY_VALUE_HEADS;  // of the KV head
constant constexpr uint kHeads = 4u;
constant constexpr uint kKeys = 8u;  // kHeads * kKeys scores: one a lane
constant constexpr uint kElements = LILY_HEAD_DIM / LILY_SIMD_WIDTH;  // of a head, neighbours, per lane
constant constexpr uint kPairs = kElements / 2u;
constant constexpr uint kHeadGroups = (kQueryHeads + kHeads - 1u) / kHeads;
constant constexpr uint kKeyGroups = LILY_ATTN_SPLIT_THREADS / LILY_SIMD_WIDTH / kHeadGroups;

// The lane's part of a row, in loads as wide as they come.
struct Elements {
  half2 pairs[kPairs];

  void load(device const half* row, uint lane) thread {
    if (kElements == 8u) {
      const uint4 bits = ((device const uint4*)row)[lane];
#pragma clang loop unroll(full)
      for (uint i = 0; i < kPairs; ++i) pairs[i] = as_type<half2>(bits[i % 4u]);
      return;
    }
#pragma clang loop unroll(full)
    for (uint i = 0; i < kPairs; ++i) pairs[i] = ((device const half2*)row)[lane * kPairs + i];
  }
};

// One step of lane_sums: pairs of lanes WIDTH apart share out 2 WIDTH values and their sums.
template <uint WIDTH>
static inline void share_out(thread float (&values)[LILY_SIMD_WIDTH], uint lane) {
  const bool upper = (lane & WIDTH) != 0u;
#pragma clang loop unroll(full)
  for (uint i = 0; i < WIDTH; ++i) {
    const float sent = upper ? values[i] : values[i + WIDTH];
    const float kept = upper ? values[i + WIDTH] : values[i];
    values[i] = kept + simd_shuffle_xor(sent, ushort(WIDTH));
  }
}

// values[i] summed over the lanes, for all 32 values at once: lane i gets that of value i.
static inline float lane_sums(thread float (&values)[LILY_SIMD_WIDTH], uint lane) {
  share_out<16u>(values, lane);
  share_out<8u>(values, lane);
  share_out<4u>(values, lane);
  share_out<2u>(values, lane);
  share_out<1u>(values, lane);
  return values[0];
}

kernel void attn_split(device const StepRow* step [[buffer(0)]], device const half* q [[buffer(1)]],
                       device const uint* page_table [[buffer(2)]], device const half* kv [[buffer(3)]],
                       device float* partial [[buffer(4)]], constant AttnSplitArgs& args [[buffer(5)]],
                       uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup half2 queries[kQueryHeads * LILY_HEAD_DIM / 2u];
  threadgroup float out[kQueryHeads * LILY_HEAD_DIM];
  threadgroup float maxima[kKeyGroups * kHeadGroups * kHeads], totals[kKeyGroups * kHeadGroups * kHeads];
  const uint kv_head = group.x, split = group.y, row = group.z;
  if (row >= args.rows) return;
  constexpr uint kStride = LILY_HEAD_DIM + 2u;
  const uint first_head = row * LILY_NUM_ATTENTION_HEADS + kv_head * kQueryHeads;
  const uint known = step[row].position + 1u, keys = step[row].keys_per_split;
  const uint begin = split * keys, end = min(known, begin + keys);
  if (begin >= known) {
    if (index < kQueryHeads) {
      device float* to = partial + ((first_head + index) * args.splits + split) * kStride;
      to[LILY_HEAD_DIM] = LILY_MASKED_SCORE;
      to[LILY_HEAD_DIM + 1u] = 0.0f;
    }
    return;
  }
  device const half2* of_heads = (device const half2*)(q + first_head * LILY_HEAD_DIM);
  for (uint i = index; i < kQueryHeads * LILY_HEAD_DIM / 2u; i += LILY_ATTN_SPLIT_THREADS) queries[i] = of_heads[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);

  const uint heads_from = simdgroup % kHeadGroups * kHeads, key_group = simdgroup / kHeadGroups;
  const uint page_begin = step[row].page_begin;
  const float scale = rsqrt(float(LILY_HEAD_DIM));
  float largest = LILY_MASKED_SCORE, total = 0.0f;  // of the lane's head, which is heads_from + lane / kKeys
  float2 acc[kHeads][kPairs];
#pragma clang loop unroll(full)
  for (uint h = 0; h < kHeads; ++h)
#pragma clang loop unroll(full)
    for (uint i = 0; i < kPairs; ++i) acc[h][i] = float2(0.0f);

  for (uint first = begin + key_group * kKeys; key_group < kKeyGroups && first < end; first += kKeyGroups * kKeys) {
    Elements rows[kKeys];
#pragma clang loop unroll(full)
    for (uint j = 0; j < kKeys; ++j)
      rows[j].load(kv + key_row(page_table, page_begin, min(first + j, end - 1u), args.layer, kv_head), lane);
    float values[LILY_SIMD_WIDTH];
#pragma clang loop unroll(full)
    for (uint h = 0; h < kHeads; ++h) {
      threadgroup const half2* query = queries + min(heads_from + h, kQueryHeads - 1u) * LILY_HEAD_DIM / 2u + lane * kPairs;
#pragma clang loop unroll(full)
      for (uint j = 0; j < kKeys; ++j) values[h * kKeys + j] = 0.0f;
#pragma clang loop unroll(full)
      for (uint i = 0; i < kPairs; ++i) {
        const float2 pair = float2(query[i]);
#pragma clang loop unroll(full)
        for (uint j = 0; j < kKeys; ++j) values[h * kKeys + j] += dot(pair, float2(rows[j].pairs[i]));
      }
    }
#pragma clang loop unroll(full)
    for (uint j = 0; j < kKeys; ++j)
      rows[j].load(kv + key_row(page_table, page_begin, min(first + j, end - 1u), args.layer, kv_head) + LILY_VALUE_ROWS, lane);

    float score = lane_sums(values, lane) * scale;
    if (first + lane % kKeys >= end) score = LILY_MASKED_SCORE;
    float block_max = score;
#pragma clang loop unroll(full)
    for (ushort width = 1; width < kKeys; width *= 2u) block_max = max(block_max, simd_shuffle_xor(block_max, width));
    const float now = max(largest, block_max), shrink = exp(largest - now), p = exp(score - now);
    total = total * shrink + lanes_sum<kKeys>(p);
    largest = now;
    if (simd_any(shrink != 1.0f)) {
#pragma clang loop unroll(full)
      for (uint h = 0; h < kHeads; ++h) {
        const float factor = simd_shuffle(shrink, ushort(h * kKeys));
#pragma clang loop unroll(full)
        for (uint i = 0; i < kPairs; ++i) acc[h][i] *= factor;
      }
    }
#pragma clang loop unroll(full)
    for (uint j = 0; j < kKeys; ++j)
#pragma clang loop unroll(full)
      for (uint h = 0; h < kHeads; ++h) {
        const float weight = simd_shuffle(p, ushort(h * kKeys + j));
#pragma clang loop unroll(full)
        for (uint i = 0; i < kPairs; ++i) acc[h][i] += weight * float2(rows[j].pairs[i]);
      }
  }

  // The softmaxes of the simdgroups become one, each head's in the order of the key groups.
  if (key_group < kKeyGroups && lane % kKeys == 0u) {
    maxima[simdgroup * kHeads + lane / kKeys] = largest;
    totals[simdgroup * kHeads + lane / kKeys] = total;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint turn = 0; turn < kKeyGroups; ++turn) {
    if (turn == key_group)
#pragma clang loop unroll(full)
      for (uint h = 0; h < kHeads; ++h) {
        if (heads_from + h >= kQueryHeads) continue;
        float overall = LILY_MASKED_SCORE;
        for (uint g = 0; g < kKeyGroups; ++g) overall = max(overall, maxima[(g * kHeadGroups * kHeads) + heads_from + h]);
        const float factor = exp(maxima[simdgroup * kHeads + h] - overall);
        threadgroup float* to = out + (heads_from + h) * LILY_HEAD_DIM + lane * kElements;
#pragma clang loop unroll(full)
        for (uint i = 0; i < kElements; ++i) to[i] = (turn == 0u ? 0.0f : to[i]) + factor * acc[h][i / 2u][i % 2u];
      }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint i = index; i < kQueryHeads * LILY_HEAD_DIM; i += LILY_ATTN_SPLIT_THREADS)
    partial[((first_head + i / LILY_HEAD_DIM) * args.splits + split) * kStride + i % LILY_HEAD_DIM] = out[i];
  if (index < kQueryHeads) {
    float overall = LILY_MASKED_SCORE, sum = 0.0f;
    for (uint g = 0; g < kKeyGroups; ++g) overall = max(overall, maxima[g * kHeadGroups * kHeads + index]);
    for (uint g = 0; g < kKeyGroups; ++g)
      sum += exp(maxima[g * kHeadGroups * kHeads + index] - overall) * totals[g * kHeadGroups * kHeads + index];
    device float* to = partial + ((first_head + index) * args.splits + split) * kStride;
    to[LILY_HEAD_DIM] = overall;
    to[LILY_HEAD_DIM + 1u] = sum;
  }
}
