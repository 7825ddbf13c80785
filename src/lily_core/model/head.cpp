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

}  // namespace lily
