// The tokens that min_p, top_k and top_p leave, without sorting the vocabulary: all three keep the head of one order (larger
// logit first, ties by lower id), so the set is a threshold, found digit by digit in the bits of the logits. All threads of a
// threadgroup call everything here together.
#pragma once

#include "lily_sample.h"
#include "lily_wide.h"

#define LILY_PICK_SIMDGROUPS (LILY_SAMPLE_PICK_THREADS / LILY_SIMD_WIDTH)
#define LILY_BINS 256u  // of a digit of a key
#define LILY_BLOCKS_PER_THREAD ((LILY_SAMPLE_BLOCKS + LILY_SAMPLE_PICK_THREADS - 1u) / LILY_SAMPLE_PICK_THREADS)
#define LILY_TOKENS_PER_THREAD (LILY_SAMPLE_BLOCK / LILY_SAMPLE_PICK_THREADS)  // of one block

// What is summed over the survivors.
#define LILY_MEASURE_COUNT 0u
#define LILY_MEASURE_MASS 1u        // the probability, in units of 2^-44 of that of the most probable token
#define LILY_MEASURE_TIES 2u        // the number of those whose key is `tie`
#define LILY_MEASURE_BLOCKS 3u      // the number of blocks, by their largest logit

// Grows with the logit; both zeros are one key.
static inline uint key_of(float logit) {
  const uint bits = as_type<uint>(logit) == 0x80000000u ? 0u : as_type<uint>(logit);
  return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}
static inline float logit_of(uint key) {
  return as_type<float>((key & 0x80000000u) != 0u ? key & 0x7fffffffu : ~key);
}

// Threadgroup memory of a Nucleus: 4 KB for 248,320 tokens.
struct NucleusScratch {
  threadgroup ulong* masses;        // [LILY_SAMPLE_BLOCKS]: the measure of each block of the vocabulary
  threadgroup ulong* parts;         // [LILY_PICK_SIMDGROUPS]
  threadgroup ulong* found;         // [2]
  threadgroup atomic_uint* low;     // [LILY_BINS]: the lower and upper halves of 64-bit sums
  threadgroup atomic_uint* high;
};

struct Nucleus {
  device const float* logits;  // adjusted
  device const SampleBlock* blocks;
  NucleusScratch scratch;
  Thread self;
  float largest, temperature;
  // A token survives when its key is larger than `lowest`, or equal and its id at most `last_id`.
  uint lowest, last_id, tie;

  void keep_min_p(float min_p) thread {
    if (min_p > 0.0f) lowest = max(lowest, key_of(largest + temperature * log(min_p)));
  }

  void keep_top_k(uint top_k) thread {
    if (top_k == 0u || top_k >= LILY_VOCAB_SIZE) return;
    // At least top_k tokens are as large as the largest ones of the top_k best blocks: look at nothing below those.
    uint floor = lowest;
    if (top_k <= LILY_SAMPLE_BLOCKS) {
      const Head head = find_head<LILY_MEASURE_BLOCKS>(top_k, lowest);
      if (head.reached) floor = head.key;
    }
    keep_head<LILY_MEASURE_COUNT>(top_k, floor);
  }

  // Keeps the fewest tokens whose probability, among those that are left, reaches top_p.
  void keep_top_p(float top_p) thread {
    if (!(top_p < 1.0f)) return;
    const ulong target = max(scaled(measure<LILY_MEASURE_MASS>(lowest), uint(top_p * 4294967296.0f)), ulong(1u));
    // Most of the vocabulary lies far below the tokens that matter: widen the view until they are in it.
    uint floor = lowest;
    for (float width = 2.0f; width < 64.0f; width *= 2.0f) {
      const uint from = key_of(largest - width * temperature);
      if (from <= lowest) break;
      if (measure<LILY_MEASURE_MASS>(from) < target) continue;
      floor = from;
      break;
    }
    keep_head<LILY_MEASURE_MASS>(target, floor);
  }

  // The token at which the cumulative probability, in the order of the ids, passes word / 2^32.
  uint draw(uint word) thread { return locate<LILY_MEASURE_MASS>(scaled(measure<LILY_MEASURE_MASS>(lowest), word)); }

 private:
  // Where the order's head of a given measure ends.
  struct Head {
    bool reached;
    uint key;     // of its last token
    ulong above;  // the measure of larger keys
    ulong equal;  // the measure of this key
  };

  // Unnormalised; every sum takes it from here, so that they agree.
  ulong mass_of(float logit) const thread {
    const float scaled_logit = (logit - largest) * (1.0f / max(temperature, 1e-30f));
    return ulong(exp(max(scaled_logit, -100.0f)) * 17592186044416.0f);
  }
  template <uint MEASURE>
  ulong value_of(uint token, float logit, uint floor) const thread {
    const uint key = key_of(logit);
    if (key < floor || key < lowest || (key == lowest && token > last_id)) return 0u;
    if (MEASURE == LILY_MEASURE_MASS) return mass_of(logit);
    return MEASURE == LILY_MEASURE_TIES && key != tie ? 0u : 1u;
  }

  // The measure of the survivors with keys from `floor` up, block by block in scratch.masses: a simdgroup per block.
  template <uint MEASURE>
  ulong measure(uint floor) const thread {
    for (uint b = self.simdgroup; b < LILY_SAMPLE_BLOCKS; b += LILY_PICK_SIMDGROUPS) {
      ulong sum = 0u;
      if (key_of(blocks[b].best) >= floor) {
        const uint begin = b * LILY_SAMPLE_BLOCK, end = min(begin + LILY_SAMPLE_BLOCK, LILY_VOCAB_SIZE);
        for (uint token = begin + self.lane; token < end; token += LILY_SIMD_WIDTH)
          sum += value_of<MEASURE>(token, logits[token], floor);
        sum = simd_sum_wide(sum);
      }
      if (self.lane == 0u) scratch.masses[b] = sum;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return threadgroup_prefix<LILY_PICK_SIMDGROUPS>(mass_of_blocks(), scratch.parts, self).total;
  }
  // Of those that are this thread's.
  ulong mass_of_blocks() const thread {
    ulong sum = 0u;
    for (uint i = 0; i < LILY_BLOCKS_PER_THREAD; ++i) {
      const uint b = self.index * LILY_BLOCKS_PER_THREAD + i;
      if (b < LILY_SAMPLE_BLOCKS) sum += scratch.masses[b];
    }
    return sum;
  }

  // The token at which the cumulative measure, in the order of the ids, passes `target`, which is less than all of it. measure()
  // with the same measure has filled scratch.masses.
  template <uint MEASURE>
  uint locate(ulong target) const thread {
    ulong sum = mass_of_blocks();
    ulong before = threadgroup_prefix<LILY_PICK_SIMDGROUPS>(sum, scratch.parts, self).before;
    if (before <= target && target < before + sum) {
      uint b = self.index * LILY_BLOCKS_PER_THREAD;
      for (; before + scratch.masses[b] <= target; ++b) before += scratch.masses[b];
      scratch.found[0] = b;
      scratch.found[1] = before;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint begin = uint(scratch.found[0]) * LILY_SAMPLE_BLOCK + self.index * LILY_TOKENS_PER_THREAD;
    const ulong before_block = scratch.found[1];
    ulong values[LILY_TOKENS_PER_THREAD];
    sum = 0u;
#pragma clang loop unroll(full)
    for (uint i = 0; i < LILY_TOKENS_PER_THREAD; ++i) {
      values[i] = begin + i < LILY_VOCAB_SIZE ? value_of<MEASURE>(begin + i, logits[begin + i], lowest) : 0u;
      sum += values[i];
    }
    before = before_block + threadgroup_prefix<LILY_PICK_SIMDGROUPS>(sum, scratch.parts, self).before;
#pragma clang loop unroll(full)
    for (uint i = 0; i < LILY_TOKENS_PER_THREAD; ++i) {
      if (before <= target && target < before + values[i]) scratch.found[0] = begin + i;
      before += values[i];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return uint(scratch.found[0]);
  }

  // Adds to a 64-bit bin: a sum that wraps hands its carry on.
  void add_to_bin(uint bin, ulong value) const thread {
    const uint before = atomic_fetch_add_explicit(&scratch.low[bin], uint(value), memory_order_relaxed);
    const uint upper = uint(value >> 32u) + (before + uint(value) < before ? 1u : 0u);
    if (upper != 0u) atomic_fetch_add_explicit(&scratch.high[bin], upper, memory_order_relaxed);
  }
  // Of survivors whose key has the digits of `prefix` above `shift`.
  template <uint MEASURE>
  void fill_bins(uint floor, uint prefix, uint shift) const thread {
    if (MEASURE == LILY_MEASURE_BLOCKS) {
      for (uint b = self.index; b < LILY_SAMPLE_BLOCKS; b += LILY_SAMPLE_PICK_THREADS) {
        const uint key = key_of(blocks[b].best);
        if (key >= floor && key >> shift >> 8u == prefix >> shift >> 8u) add_to_bin(key >> shift & 255u, 1u);
      }
      return;
    }
    for (uint b = self.simdgroup; b < LILY_SAMPLE_BLOCKS; b += LILY_PICK_SIMDGROUPS) {
      if (key_of(blocks[b].best) < max(floor, prefix)) continue;
      const uint begin = b * LILY_SAMPLE_BLOCK, end = min(begin + LILY_SAMPLE_BLOCK, LILY_VOCAB_SIZE);
      for (uint token = begin + self.lane; token < end; token += LILY_SIMD_WIDTH) {
        const float logit = logits[token];
        const uint key = key_of(logit);
        if (key >> shift >> 8u != prefix >> shift >> 8u) continue;
        const ulong value = value_of<MEASURE>(token, logit, floor);
        if (value != 0u) add_to_bin(key >> shift & 255u, value);
      }
    }
  }
  ulong bin(uint at) const thread {
    return ulong(atomic_load_explicit(&scratch.low[at], memory_order_relaxed)) +
           (ulong(atomic_load_explicit(&scratch.high[at], memory_order_relaxed)) << 32u);
  }

  // The shortest head whose measure reaches `target`, at least 1, among keys from `floor` up.
  template <uint MEASURE>
  Head find_head(ulong target, uint floor) const thread {
    constexpr uint kPerLane = LILY_BINS / LILY_SIMD_WIDTH;
    Head head = {true, 0u, 0u, 0u};
    for (uint digit = 0; digit < 4u && head.reached; ++digit) {
      const uint shift = 24u - 8u * digit;
      for (uint i = self.index; i < LILY_BINS; i += LILY_SAMPLE_PICK_THREADS) {
        atomic_store_explicit(&scratch.low[i], 0u, memory_order_relaxed);
        atomic_store_explicit(&scratch.high[i], 0u, memory_order_relaxed);
      }
      if (self.index == 0u) scratch.found[0] = LILY_BINS;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      fill_bins<MEASURE>(floor, head.key, shift);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      if (self.simdgroup == 0u) {  // from the largest key down: lane 0 has the last bins
        ulong sum = 0u;
        for (uint i = 0; i < kPerLane; ++i) sum += bin(LILY_BINS - 1u - self.lane * kPerLane - i);
        ulong above = head.above + simd_prefix_wide(sum);
        if (above < target && target <= above + sum) {
          uint at = LILY_BINS - 1u - self.lane * kPerLane;
          for (; above + bin(at) < target; --at) above += bin(at);
          scratch.found[0] = at;
          scratch.found[1] = above;
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      const uint at = uint(scratch.found[0]);
      head.reached = at < LILY_BINS;
      if (head.reached) {
        head.key |= at << shift;
        head.above = scratch.found[1];
        head.equal = bin(at);
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    return head;
  }

  // Keeps the shortest head of the order whose measure reaches `target`, and everything when all of it does not.
  template <uint MEASURE>
  void keep_head(ulong target, uint floor) thread {
    const Head head = find_head<MEASURE>(target, floor);
    if (!head.reached) return;
    // Tokens with the last key have one measure: of those, as many as are needed.
    const ulong each = MEASURE == LILY_MEASURE_MASS ? mass_of(logit_of(head.key)) : 1u;
    const ulong needed = (target - head.above + each - 1u) / each;
    uint last = head.key == lowest ? last_id : 0xffffffffu;
    if (needed * each < head.equal) {
      tie = head.key;
      measure<LILY_MEASURE_TIES>(head.key);
      last = locate<LILY_MEASURE_TIES>(needed - 1u);
    }
    lowest = head.key;
    last_id = last;
  }
};
