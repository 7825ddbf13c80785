#include "model/programs.h"
#include "model/recorder.h"

namespace lily {

void record_head(Recorder& op, const Model& model, const Range& step, const Range& x, std::uint32_t rows) {
  auto& [config, weights, state, a, io, rope, slots] = model;
  op("lm_head", RowsArgs{rows}, {step, x, weights.norm, weights.lm_head, a.logits, io.flags.buffer()}, {config.vocab_size, rows});
}

void record_sampler(Recorder& op, const Model& model, const Range& step, std::uint32_t rows) {
  auto& [config, weights, state, a, io, rope, slots] = model;
  const RowsArgs args{rows};
  op("sample_scan", args,
     {step, io.samples.buffer(), a.logits, io.counts.buffer(), io.bias.buffer(), io.mask.buffer(), a.adjusted,
      a.sample_blocks},
     {config.vocab_size, rows});
  op("sample_pick", args,
     {step, io.samples.buffer(), a.logits, a.adjusted, a.sample_blocks, io.counts.buffer(), io.tokens.buffer(),
      io.results.buffer()},
     {rows});
}

Range expert_slots(const Model& model, std::uint32_t layer) {
  const std::uint64_t length = std::uint64_t{4} * model.config.num_experts;
  return {model.expert_slot.get(), layer * length, length};
}

}  // namespace lily
