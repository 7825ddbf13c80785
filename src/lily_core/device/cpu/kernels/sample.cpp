// Sampling in two kernels: sample_scan adjusts the logits and sums up blocks of the vocabulary, sample_pick draws from the sums.
#include <cmath>

#include "device/cpu/kernels/nucleus.h"
#include "device/cpu/kernels/philox.h"
#include "device/cpu/kernels/table.h"

namespace lily::cpu::LILY_ISA {
namespace {

// The logits of one block after bias, mask and penalties, in this order.
struct Adjustment {
  const SampleRow& row;
  const BiasEntry* bias;
  const std::uint32_t* mask;    // bit set: allowed
  const std::uint32_t* counts;

  void apply(float* logits, std::uint32_t begin, std::uint32_t end) const {
    for (std::uint32_t i = row.bias_begin; i < row.bias_end; ++i)
      if (bias[i].token_id >= begin && bias[i].token_id < end) logits[bias[i].token_id - begin] += bias[i].value;
    if (row.uses_mask)
      for (std::uint32_t t = begin; t < end; ++t)
        if (!(mask[t / 32] >> t % 32 & 1)) logits[t - begin] = -__builtin_inff();
    if (row.uses_counts)
      for (std::uint32_t t = begin; t < end; ++t)
        if (counts[t]) penalise(logits[t - begin], counts[t]);
  }

  // As vLLM: repetition for every token seen, frequency and presence for those of the output.
  void penalise(float& logit, std::uint32_t count) const {
    const std::uint32_t in_output = count & ~LILY_COUNT_IN_PROMPT;
    logit = logit > 0 ? logit / row.repetition_penalty : logit * row.repetition_penalty;
    logit -= row.frequency_penalty * float(in_output);
    if (in_output) logit -= row.presence_penalty;
  }
};

float largest_of(const float* x, std::uint32_t count) {
  Vf best = splat(-__builtin_inff());
  std::uint32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) best = max(loadf(x + i), best);
  if (i < count) best = max(load_part(x + i, count - i, -__builtin_inff()), best);
  float largest = best[0];
  for (int j = 1; j < kLanes; ++j) largest = best[j] > largest ? best[j] : largest;
  return largest;
}

SampleBlock sum_up(const float* raw, const float* adjusted, std::uint32_t begin, std::uint32_t count) {
  SampleBlock block = {largest_of(raw, count), 0, largest_of(adjusted, count), begin};
  Vf total = {};
  for (std::uint32_t i = 0; i < count; i += kLanes)
    total += exp((i + kLanes <= count ? loadf(raw + i) : load_part(raw + i, count - i, -__builtin_inff())) - block.raw_max);
  block.raw_sum = sum(total);
  std::uint32_t at = 0;
  while (at + 1 < count && adjusted[at] != block.best) ++at;
  block.best_id = begin + at;
  return block;
}

}  // namespace

static void sample_scan(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t vocab = call.model->vocab_size, mask_words = (vocab + 31) / 32;
  const StepRow* step = buffer<const StepRow>(call, 0);
  for (std::uint32_t i = first; i < last; ++i) {
    const Tile t = tile_at(call, i);
    const StepRow& row = step[t.y0];
    if (row.sample_row == LILY_NO_SAMPLE) continue;
    const float* logits = buffer<const float>(call, 2) + std::size_t(row.timeline) * vocab;
    float* adjusted = buffer<float>(call, 6) + std::size_t(t.y0) * vocab;
    SampleBlock* blocks = buffer<SampleBlock>(call, 7) + std::size_t(t.y0) * call.model->sample_blocks();
    const Adjustment adjustment = {buffer<const SampleRow>(call, 1)[row.sample_row], buffer<const BiasEntry>(call, 4),
                                   buffer<const std::uint32_t>(call, 5) + std::size_t(row.sample_row) * mask_words,
                                   buffer<const std::uint32_t>(call, 3) + std::size_t(row.timeline) * vocab};
    for (std::uint32_t begin = t.x0; begin < t.x1; begin += LILY_SAMPLE_BLOCK) {
      const std::uint32_t end = begin + LILY_SAMPLE_BLOCK < t.x1 ? begin + LILY_SAMPLE_BLOCK : t.x1;
      std::memcpy(adjusted + begin, logits + begin, (end - begin) * sizeof(float));
      adjustment.apply(adjusted + begin, begin, end);
      blocks[begin / LILY_SAMPLE_BLOCK] = sum_up(logits + begin, adjusted + begin, begin, end - begin);
    }
  }
}

namespace {

// log Σ exp(raw) from the sums of the blocks.
double log_total(const SampleBlock* blocks, std::uint32_t count) {
  double largest = blocks[0].raw_max, total = 0;
  for (std::uint32_t b = 1; b < count; ++b) largest = blocks[b].raw_max > largest ? blocks[b].raw_max : largest;
  for (std::uint32_t b = 0; b < count; ++b) total += blocks[b].raw_sum * std::exp(blocks[b].raw_max - largest);
  return largest + std::log(total);
}

// The result's num_logprobs largest raw logits, larger first, ties to the lower id. Blocks that hold none are passed over.
void find_top(const float* raw, const SampleBlock* blocks, std::uint32_t vocab, double log_sum, SampleResult& result) {
  const std::uint32_t wanted = result.num_logprobs;
  std::uint32_t found = 0;
  float* top = result.top_logprobs;  // raw logits until the end
  for (std::uint32_t b = 0; wanted && b * LILY_SAMPLE_BLOCK < vocab; ++b) {
    if (found == wanted && !(blocks[b].raw_max > top[wanted - 1])) continue;
    const std::uint32_t begin = b * LILY_SAMPLE_BLOCK;
    const std::uint32_t end = begin + LILY_SAMPLE_BLOCK < vocab ? begin + LILY_SAMPLE_BLOCK : vocab;
    for (std::uint32_t t = begin; t < end; ++t) {
      if (found == wanted && !(raw[t] > top[wanted - 1])) continue;
      std::uint32_t at = found < wanted ? found++ : wanted - 1;
      for (; at > 0 && raw[t] > top[at - 1]; --at) top[at] = top[at - 1], result.top_ids[at] = result.top_ids[at - 1];
      top[at] = raw[t];
      result.top_ids[at] = t;
    }
  }
  for (std::uint32_t i = 0; i < found; ++i) top[i] = float(top[i] - log_sum);
}

std::uint32_t greedy(const SampleBlock* blocks, std::uint32_t count) {
  const SampleBlock* best = blocks;
  for (std::uint32_t b = 1; b < count; ++b)
    if (blocks[b].best > best->best) best = blocks + b;
  return best->best > -__builtin_inff() ? best->best_id : LILY_NO_SAMPLE;
}

}  // namespace

static void sample_pick(const KernelCall& call, std::uint32_t first, std::uint32_t last) {
  const std::uint32_t vocab = call.model->vocab_size, num_blocks = call.model->sample_blocks();
  const StepRow* step = buffer<const StepRow>(call, 0);
  const NucleusScratch scratch = scratch_of<NucleusScratch>(call);
  for (std::uint32_t r = first; r < last; ++r) {
    if (step[r].sample_row == LILY_NO_SAMPLE) continue;
    const SampleRow& row = buffer<const SampleRow>(call, 1)[step[r].sample_row];
    const float* raw = buffer<const float>(call, 2) + std::size_t(step[r].timeline) * vocab;
    const SampleBlock* blocks = buffer<const SampleBlock>(call, 4) + std::size_t(r) * num_blocks;

    std::uint32_t token = greedy(blocks, num_blocks);
    if (token != LILY_NO_SAMPLE && row.temperature > 0) {
      const float* adjusted = buffer<const float>(call, 3) + std::size_t(r) * vocab;
      Nucleus nucleus(adjusted, blocks, vocab, adjusted[token], row.temperature, scratch);
      nucleus.keep_min_p(row.min_p);
      nucleus.keep_top_k(row.top_k);
      nucleus.keep_top_p(row.top_p);
      token = nucleus.draw(philox(row.seed_low, row.seed_high, step[r].position + 1) * 0x1p-32);
    }

    SampleResult result = {};
    result.token_id = token;
    result.num_logprobs = row.num_logprobs < vocab ? row.num_logprobs : vocab;
    if (row.wants_logprob || row.num_logprobs) {
      const double log_sum = log_total(blocks, num_blocks);
      if (token != LILY_NO_SAMPLE) result.logprob = float(raw[token] - log_sum);
      find_top(raw, blocks, vocab, log_sum, result);
    }
    buffer<SampleResult>(call, 7)[step[r].sample_row] = result;
    if (token == LILY_NO_SAMPLE) continue;  // nothing is allowed: the host raises
    buffer<std::uint32_t>(call, 6)[row.token_slot] = token;
    if (row.uses_counts) ++buffer<std::uint32_t>(call, 5)[std::size_t(step[r].timeline) * vocab + token];
  }
}

void add_sample(KernelTable& table) {
  add_kernel(table, {.op = "sample_scan", .run = sample_scan, .tile = {4 * LILY_SAMPLE_BLOCK, 1, 1}});
  add_kernel(table, {.op = "sample_pick", .run = sample_pick, .tile = {1, 1, 1}, .scratch_bytes = scratch_bytes<NucleusScratch>});
}

}  // namespace lily::cpu::LILY_ISA
