// The tokens that min_p, top_k and top_p leave, without sorting the vocabulary: all three keep the head of one order
// (larger logit first, ties by lower id), so the set is a threshold, found digit by digit in the bits of the logits.
#pragma once

#include <cmath>

#include "device/cpu/kernels/scratch.h"
#include "device/cpu/kernels/simd.h"

namespace lily::cpu::LILY_ISA {

// What a Nucleus works with.
struct NucleusScratch {
  NucleusScratch(const KernelCall& call, Scratch& scratch)
      : bins(scratch.take<double>(kBins)), masses(scratch.take<double>(call.model->sample_blocks())) {}

  static constexpr std::uint32_t kBins = 1u << 11;  // of the widest digit of a key
  double* bins;    // [kBins]
  double* masses;  // [block of the vocabulary]
};

class Nucleus {
 public:
  // `largest` is the largest logit, temperature > 0, `blocks` has the largest logit of each LILY_SAMPLE_BLOCK tokens.
  Nucleus(const float* logits, const SampleBlock* blocks, std::uint32_t vocab, float largest, float temperature,
          const NucleusScratch& scratch)
      : logits_(logits),
        blocks_(blocks),
        vocab_(vocab),
        largest_(largest),
        temperature_(temperature),
        inverse_(1.0f / (temperature > 1e-30f ? temperature : 1e-30f)),
        bins_(scratch.bins),
        masses_(scratch.masses),
        lowest_(key_of(-3.402823466e38f)) {}  // -inf is never drawn

  // Drops tokens less than min_p times as probable as the most probable one.
  void keep_min_p(float min_p) {
    if (!(min_p > 0)) return;
    const double bound = double(largest_) + double(temperature_) * std::log(double(min_p));
    const std::uint32_t key = key_of(float(bound)) + (double(float(bound)) < bound);
    if (key > lowest_) lowest_ = key;
  }

  void keep_top_k(std::uint32_t top_k) {
    if (top_k == 0 || top_k >= vocab_) return;
    // At least top_k tokens are as large as the largest ones of the top_k best blocks: look at nothing below those.
    std::uint32_t floor = 0;
    for (std::uint32_t bit = 1u << 31; bit; bit >>= 1) {
      std::uint32_t count = 0;
      for (std::uint32_t b = 0; b * LILY_SAMPLE_BLOCK < vocab_; ++b) count += key_of(blocks_[b].best) >= (floor | bit);
      if (count >= top_k) floor |= bit;
    }
    keep_head<false>(top_k, floor > lowest_ ? floor : lowest_);
  }

  // Keeps the fewest tokens whose probability, among those that are left, reaches top_p.
  void keep_top_p(float top_p) {
    if (!(top_p < 1)) return;
    const double target = double(top_p) * total_mass();
    // Most of the vocabulary lies far below the tokens that matter: widen the view until they are in it.
    for (float width = 2; width < 64; width *= 2) {
      const std::uint32_t floor = key_of(largest_ - width * temperature_);
      if (floor <= lowest_) break;
      if (mass_from(floor) >= target && keep_head<true>(target, floor)) return;
    }
    keep_head<true>(target, lowest_);
  }

  // The token at which the cumulative probability, in the order of the ids, passes u in [0, 1).
  std::uint32_t draw(double u) {
    const double target = u * total_mass();
    double before = 0;
    std::uint32_t drawn = LILY_NO_SAMPLE;
    for (std::uint32_t b = 0; b * LILY_SAMPLE_BLOCK < vocab_; ++b) {
      if (masses_[b] == 0) continue;
      if (before + masses_[b] <= target) {
        before += masses_[b];
        continue;
      }
      // Rounding may leave the target a little behind the sum of the block; then its last token is the one.
      double reached = before;
      for (std::uint32_t t = b * LILY_SAMPLE_BLOCK; t < end_of(b); t += kLanes) {
        const Vf logits = logits_from(t);
        const Vf weights = survivors(t, logits) ? weights_of(logits) : Vf{};
        for (int i = 0; i < kLanes; ++i) {
          if (weights[i] == 0) continue;
          drawn = t + i;
          reached += weights[i];
          if (reached > target) return drawn;
        }
      }
      return drawn;
    }
    return drawn;
  }

 private:
  typedef double Vd __attribute__((vector_size(kLanes * 8)));

  // Grows with the logit; both zeros are one key.
  static std::uint32_t key_of(float logit) {
    const std::uint32_t bits = load<std::uint32_t>(&(logit += 0.0f));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  }
  std::uint32_t end_of(std::uint32_t block) const {
    const std::uint32_t end = (block + 1) * LILY_SAMPLE_BLOCK;
    return end < vocab_ ? end : vocab_;
  }
  static float logit_of(std::uint32_t key) {
    const std::uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    return load<float>(&bits);
  }

  // kLanes tokens at a time, those beyond the vocabulary as -inf.
  Vf logits_from(std::uint32_t token) const {
    return token + kLanes <= vocab_ ? loadf(logits_ + token) : load_part(logits_ + token, vocab_ - token, -__builtin_inff());
  }
  Vi survivors(std::uint32_t token, Vf logits) const {
    const Vf lowest = splat(logit_of(lowest_));
    return (logits > lowest) | ((logits == lowest) & (kLaneIndex + std::int32_t(token) <= last_id_));
  }
  // Unnormalised probabilities; every sum takes them from here, so that they agree.
  Vf weights_of(Vf logits) const { return exp((logits - largest_) * inverse_); }

  // Of all survivors, block by block into masses_.
  double total_mass() { return mass_from(lowest_); }

  // Of those with keys from `floor` up.
  double mass_from(std::uint32_t floor) {
    const Vf least = splat(logit_of(floor));
    double total = 0;
    for (std::uint32_t b = 0; b * LILY_SAMPLE_BLOCK < vocab_; ++b) {
      Vd mass = {};
      if (key_of(blocks_[b].best) >= floor)
        for (std::uint32_t t = b * LILY_SAMPLE_BLOCK; t < end_of(b); t += kLanes) {
          const Vf logits = logits_from(t);
          const Vi wanted = survivors(t, logits) & (logits >= least);
          if (any(wanted)) mass += __builtin_convertvector(wanted ? weights_of(logits) : Vf{}, Vd);
        }
      masses_[b] = 0;
      for (int i = 0; i < kLanes; ++i) masses_[b] += mass[i];
      total += masses_[b];
    }
    return total;
  }

  // Keeps the shortest head of the order whose measure (number of tokens, or probability) reaches `target`, looking at keys from
  // `floor` up. Changes nothing and returns false when all of those do not reach it.
  template <bool kMass>
  bool keep_head(double target, std::uint32_t floor) {
    double above = 0;  // the measure of keys larger than the prefix found so far
    std::uint32_t prefix = 0;
    constexpr int kShifts[] = {21, 10, 0}, kWidths[] = {11, 11, 10};
    for (int digit = 0; digit < 3; ++digit) {
      const std::uint32_t bins = 1u << kWidths[digit];
      for (std::uint32_t i = 0; i < bins; ++i) bins_[i] = 0;
      const std::uint32_t last = digit > 0 ? prefix | ((1u << kShifts[digit - 1]) - 1) : ~0u;
      for_each<kMass>(prefix > floor ? prefix : floor, last, [&](std::uint32_t, std::uint32_t key, double weight) {
        bins_[key >> kShifts[digit] & (bins - 1)] += weight;
      });
      std::uint32_t bin = bins;
      while (bin > 0 && (bins_[bin - 1] == 0 || above + bins_[bin - 1] < target)) above += bins_[--bin];
      if (bin == 0) {
        if (digit == 0) return false;
        // Sums of the same weights in another order may end a rounding error short: the last one that has any is the one.
        while (bin + 1 < bins && bins_[bin] == 0) ++bin;
        above -= bins_[bin];
        ++bin;
      }
      prefix |= (bin - 1) << kShifts[digit];
    }
    // The key is found; of the tokens that have it, take as many as are needed, at least one.
    std::int32_t last_id = -1;
    for_each<kMass>(prefix, prefix, [&](std::uint32_t token, std::uint32_t, double weight) {
      if (last_id >= 0 && above >= target) return;
      above += weight;
      last_id = std::int32_t(token);
    });
    lowest_ = prefix;
    last_id_ = last_id;
    return true;
  }

  // Calls visit(token, key, weight) for the survivors with keys in [floor, last], in the order of their ids; without kMass all
  // weights are 1.
  template <bool kMass, typename Visit>
  void for_each(std::uint32_t floor, std::uint32_t last, Visit visit) const {
    const Vf least = splat(logit_of(floor)), most = splat(last == ~0u ? __builtin_inff() : logit_of(last));
    for (std::uint32_t b = 0; b * LILY_SAMPLE_BLOCK < vocab_; ++b) {
      if (key_of(blocks_[b].best) < floor) continue;
      for (std::uint32_t t = b * LILY_SAMPLE_BLOCK; t < end_of(b); t += kLanes) {
        const Vf logits = logits_from(t);
        const Vi wanted = survivors(t, logits) & (logits >= least) & (logits <= most);
        if (!any(wanted)) continue;
        float value[kLanes], weight[kLanes];
        std::int32_t visited[kLanes];
        storef(value, logits);
        storef(weight, kMass ? weights_of(logits) : splat(1.0f));
        std::memcpy(visited, &wanted, sizeof visited);
        for (int i = 0; i < kLanes; ++i)
          if (visited[i]) visit(t + i, key_of(value[i]), double(weight[i]));
      }
    }
  }

  const float* logits_;
  const SampleBlock* blocks_;
  const std::uint32_t vocab_;
  const float largest_;
  const float temperature_;
  const float inverse_;  // of the temperature, kept finite
  double* bins_;
  double* masses_;  // per block, of the last mass_from()
  // A token survives when its key is larger than lowest_, or equal and its id at most last_id_.
  std::uint32_t lowest_;
  std::int32_t last_id_ = 0x7fffffff;
};

}  // namespace lily::cpu::LILY_ISA
