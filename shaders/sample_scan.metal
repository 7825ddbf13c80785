// Bias, vocabulary mask and penalties, in this order, and what sample_pick wants to know of each block of the vocabulary.
#include "lily_sample.h"

#define LILY_SCAN_SIMDGROUPS (LILY_SAMPLE_SCAN_THREADS / LILY_SIMD_WIDTH)
#define LILY_SCAN_TOKENS (LILY_SAMPLE_BLOCK / LILY_SAMPLE_SCAN_THREADS)  // of a thread
#define LILY_MASK_WORDS ((LILY_VOCAB_SIZE + 31u) / 32u)

// As vLLM: repetition for every token seen, frequency and presence for those of the output.
static inline float penalised(float logit, uint count, device const SampleRow& row) {
  const uint in_output = count & ~LILY_COUNT_IN_PROMPT;
  logit = logit > 0.0f ? logit / row.repetition_penalty : logit * row.repetition_penalty;
  logit -= row.frequency_penalty * float(in_output);
  return in_output != 0u ? logit - row.presence_penalty : logit;
}

kernel void sample_scan(device const StepRow* step [[buffer(0)]], device const SampleRow* sample_rows [[buffer(1)]],
                        device const float* logits [[buffer(2)]], device const uint* token_counts [[buffer(3)]],
                        device const BiasEntry* bias [[buffer(4)]], device const uint* mask [[buffer(5)]],
                        device float* adjusted [[buffer(6)]], device SampleBlock* blocks [[buffer(7)]],
                        constant RowsArgs& args [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                        uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float raw_values[LILY_SCAN_SIMDGROUPS], best_values[LILY_SCAN_SIMDGROUPS], sums[LILY_SCAN_SIMDGROUPS];
  threadgroup uint best_places[LILY_SCAN_SIMDGROUPS];
  const uint r = group.y, sample_row = r < args.rows ? step[r].sample_row : LILY_NO_SAMPLE;
  if (sample_row == LILY_NO_SAMPLE) return;
  device const SampleRow& row = sample_rows[sample_row];
  const ulong timeline = (ulong)step[r].timeline * LILY_VOCAB_SIZE;

  float raw[LILY_SCAN_TOKENS], raw_max = LILY_FORBIDDEN;
  Best best = {LILY_FORBIDDEN, 0xffffffffu};
#pragma clang loop unroll(full)
  for (uint i = 0; i < LILY_SCAN_TOKENS; ++i) {
    const uint token = group.x * LILY_SAMPLE_BLOCK + i * LILY_SAMPLE_SCAN_THREADS + index;
    raw[i] = LILY_FORBIDDEN;
    if (token >= LILY_VOCAB_SIZE) continue;
    raw[i] = logits[timeline + token];
    raw_max = max(raw_max, raw[i]);
    float value = raw[i];
    for (uint b = row.bias_begin; b < row.bias_end; ++b)
      if (bias[b].token_id == token) value += max(bias[b].value, LILY_FORBIDDEN);
    const bool allowed = row.uses_mask == 0u || (mask[sample_row * LILY_MASK_WORDS + token / 32u] >> token % 32u & 1u) != 0u;
    if (!allowed || value < LILY_LEAST_LOGIT) value = LILY_FORBIDDEN;
    if (row.uses_counts != 0u && value > LILY_FORBIDDEN) {
      const uint count = token_counts[timeline + token];
      if (count != 0u) value = penalised(value, count, row);
    }
    adjusted[(ulong)r * LILY_VOCAB_SIZE + token] = value;
    if (value > best.value || best.place == 0xffffffffu) {
      best.value = value;
      best.place = token;
    }
  }

  raw_max = simd_max(raw_max);
  best = simd_best(best.value, best.place);
  if (lane == 0u) {
    raw_values[simdgroup] = raw_max;
    best_values[simdgroup] = best.value;
    best_places[simdgroup] = best.place;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < LILY_SCAN_SIMDGROUPS; ++i) raw_max = max(raw_max, raw_values[i]);
  float sum = 0.0f;
#pragma clang loop unroll(full)
  for (uint i = 0; i < LILY_SCAN_TOKENS; ++i) sum += raw[i] > LILY_FORBIDDEN ? exp(raw[i] - raw_max) : 0.0f;
  sum = simd_sum(sum);
  if (lane == 0u) sums[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (index != 0u) return;
  best = parts_best<LILY_SCAN_SIMDGROUPS>(best_values, best_places);
  device SampleBlock& block = blocks[r * LILY_SAMPLE_BLOCKS + group.x];
  block.raw_max = raw_max;
  block.raw_sum = parts_sum<LILY_SCAN_SIMDGROUPS>(sums);
  block.best = best.value;
  block.best_id = best.place;
}
