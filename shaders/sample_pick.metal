// Draws each row's token from what sample_scan left, and names the most probable ones. A threadgroup has one row,
// and 6 KB of its memory for 248,320 tokens.
#include "lily_nucleus.h"
#include "lily_philox.h"

// Reductions over the threadgroup.
struct Pick {
  threadgroup float* values;  // [LILY_PICK_SIMDGROUPS]
  threadgroup uint* places;   // [LILY_PICK_SIMDGROUPS]
  Thread self;

  // The largest value and the lowest place that has it.
  Best best(float value, uint place) const thread {
    Best best = simd_best(value, place);
    if (self.lane == 0u) {
      values[self.simdgroup] = best.value;
      places[self.simdgroup] = best.place;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    best = parts_best<LILY_PICK_SIMDGROUPS>(values, places);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return best;
  }
  float sum(float value) const thread {
    value = simd_sum(value);
    if (self.lane == 0u) values[self.simdgroup] = value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    value = parts_sum<LILY_PICK_SIMDGROUPS>(values);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return value;
  }

  // The token with the largest adjusted logit, or LILY_NO_SAMPLE when none is allowed.
  uint greedy(device const SampleBlock* blocks) const thread {
    Best mine = {LILY_FORBIDDEN, 0xffffffffu};
    for (uint b = self.index; b < LILY_SAMPLE_BLOCKS; b += LILY_SAMPLE_PICK_THREADS)
      if (blocks[b].best > mine.value) {
        mine.value = blocks[b].best;
        mine.place = b;
      }
    const Best first = best(mine.value, mine.place);
    return first.value > LILY_LEAST_LOGIT ? blocks[first.place].best_id : LILY_NO_SAMPLE;
  }
};

// log-softmax of the raw logits is logit - largest - log_sum.
struct Normaliser {
  float largest;
  float log_sum;
};
static inline Normaliser normaliser_of(device const SampleBlock* blocks, Pick pick) {
  float largest = LILY_FORBIDDEN;
  for (uint b = pick.self.index; b < LILY_SAMPLE_BLOCKS; b += LILY_SAMPLE_PICK_THREADS) largest = max(largest, blocks[b].raw_max);
  Normaliser normaliser;
  normaliser.largest = pick.best(largest, 0u).value;
  float sum = 0.0f;
  for (uint b = pick.self.index; b < LILY_SAMPLE_BLOCKS; b += LILY_SAMPLE_PICK_THREADS)
    sum += blocks[b].raw_sum * exp(blocks[b].raw_max - normaliser.largest);
  normaliser.log_sum = log(pick.sum(sum));
  return normaliser;
}

// The `count` largest raw logits, larger first, ties to the lower id. `heads` holds the largest of each block that is not named
// yet, so every name looks into one block.
static inline void name_top(device const float* raw, device const SampleBlock* blocks, uint count, Normaliser normaliser,
                            threadgroup float* heads, threadgroup uint* named, Pick pick, device SampleResult& result) {
  const uint index = pick.self.index;
  for (uint b = index; b < LILY_SAMPLE_BLOCKS; b += LILY_SAMPLE_PICK_THREADS) {
    heads[b] = blocks[b].raw_max;
    named[b] = 0u;  // the first token that is not named among those of the block that are as large as its head
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < count; ++i) {
    Best mine = {LILY_FORBIDDEN, 0xffffffffu};
    for (uint b = index; b < LILY_SAMPLE_BLOCKS; b += LILY_SAMPLE_PICK_THREADS)
      if (heads[b] > mine.value) {
        mine.value = heads[b];
        mine.place = b;
      }
    const Best head = pick.best(mine.value, mine.place);
    const uint block = min(head.place, LILY_SAMPLE_BLOCKS - 1u), from = named[block];
    uint token = LILY_VOCAB_SIZE - 1u;
    float next = LILY_FORBIDDEN;
    for (uint t = block * LILY_SAMPLE_BLOCK + index; t < min((block + 1u) * LILY_SAMPLE_BLOCK, LILY_VOCAB_SIZE);
         t += LILY_SAMPLE_PICK_THREADS) {
      if (raw[t] == head.value && t >= from) token = min(token, t);
      if (raw[t] < head.value) next = max(next, raw[t]);
    }
    token = pick.best(0.0f, token).place;
    uint ties = 0u;
    for (uint t = block * LILY_SAMPLE_BLOCK + index; t < min((block + 1u) * LILY_SAMPLE_BLOCK, LILY_VOCAB_SIZE);
         t += LILY_SAMPLE_PICK_THREADS)
      if (raw[t] == head.value && t > token) ties = 1u;
    const bool more = pick.best(ties != 0u ? 1.0f : 0.0f, 0u).value > 0.0f;
    const float next_head = pick.best(next, 0u).value;
    if (index == 0u) {
      heads[block] = more ? head.value : next_head;
      named[block] = more ? token + 1u : 0u;
      result.top_ids[i] = token;
      result.top_logprobs[i] = head.value - normaliser.largest - normaliser.log_sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

kernel void sample_pick(device const StepRow* step [[buffer(0)]], device const SampleRow* sample_rows [[buffer(1)]],
                        device const float* logits [[buffer(2)]], device const float* adjusted [[buffer(3)]],
                        device const SampleBlock* all_blocks [[buffer(4)]], device uint* token_counts [[buffer(5)]],
                        device uint* tokens [[buffer(6)]], device SampleResult* results [[buffer(7)]],
                        constant RowsArgs& args [[buffer(8)]], uint3 group [[threadgroup_position_in_grid]],
                        uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]]) {
  threadgroup ulong masses[LILY_SAMPLE_BLOCKS], parts[LILY_PICK_SIMDGROUPS], found[2];
  threadgroup atomic_uint low[LILY_BINS], high[LILY_BINS];
  threadgroup float values[LILY_PICK_SIMDGROUPS], heads[LILY_SAMPLE_BLOCKS];
  threadgroup uint places[LILY_PICK_SIMDGROUPS], named[LILY_SAMPLE_BLOCKS];
  const uint r = group.x, sample_row = r < args.rows ? step[r].sample_row : LILY_NO_SAMPLE;
  if (sample_row == LILY_NO_SAMPLE) return;
  device const SampleRow& row = sample_rows[sample_row];
  device const SampleBlock* blocks = all_blocks + r * LILY_SAMPLE_BLOCKS;
  device const float* raw = logits + (ulong)step[r].timeline * LILY_VOCAB_SIZE;
  const Thread self = {index, simdgroup, lane};
  const Pick pick = {values, places, self};

  uint token = pick.greedy(blocks);
  if (token != LILY_NO_SAMPLE && row.temperature > 0.0f) {
    Nucleus nucleus;
    nucleus.logits = adjusted + (ulong)r * LILY_VOCAB_SIZE;
    nucleus.blocks = blocks;
    nucleus.scratch.masses = masses;
    nucleus.scratch.parts = parts;
    nucleus.scratch.found = found;
    nucleus.scratch.low = low;
    nucleus.scratch.high = high;
    nucleus.self = self;
    nucleus.largest = nucleus.logits[token];
    nucleus.temperature = row.temperature;
    nucleus.lowest = key_of(LILY_LEAST_LOGIT);
    nucleus.last_id = 0xffffffffu;
    nucleus.tie = 0u;
    nucleus.keep_min_p(row.min_p);
    nucleus.keep_top_k(row.top_k);
    nucleus.keep_top_p(row.top_p);
    token = nucleus.draw(philox(row.seed_low, row.seed_high, step[r].position + 1u));
  }

  device SampleResult& result = results[sample_row];
  const uint count = min(row.num_logprobs, LILY_VOCAB_SIZE);
  if (index < LILY_MAX_TOP_LOGPROBS) {
    result.top_ids[index] = 0u;
    result.top_logprobs[index] = 0.0f;
  }
  threadgroup_barrier(mem_flags::mem_device);
  float logprob = 0.0f;
  if (row.wants_logprob != 0u || count != 0u) {
    const Normaliser normaliser = normaliser_of(blocks, pick);
    if (token != LILY_NO_SAMPLE) logprob = raw[token] - normaliser.largest - normaliser.log_sum;
    name_top(raw, blocks, count, normaliser, heads, named, pick, result);
  }
  if (index != 0u) return;
  result.token_id = token;
  result.logprob = logprob;
  result.num_logprobs = count;
  if (token == LILY_NO_SAMPLE) return;  // nothing is allowed: the host raises
  tokens[row.token_slot] = token;
  if (row.uses_counts != 0u) token_counts[(ulong)step[r].timeline * LILY_VOCAB_SIZE + token] += 1u;
}
