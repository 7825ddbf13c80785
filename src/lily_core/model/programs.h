// The two programs of the model, the same for every device (docs/design/kernels.md).
#pragma once

#include <cstdint>

#include "device/device.h"
#include "model/model.h"
#include "program/program.h"

namespace lily {

// Positions that a recorded step covers: 256, 512, 1024, …, the first that holds `context`.
std::uint32_t step_bucket(std::uint64_t context);

// Keys of a split of decode attention for a row with this context. They follow from the row alone: what else a step computes does
// not change the order of its sums. No row has more splits than one with a longer context.
std::uint32_t keys_per_split(const DeviceTraits& traits, std::uint64_t context);

// One step of `rows` rows whose positions are below `bucket`. With `masks_follow` the sampler is a segment of its own: the host
// may write token masks while the device computes the logits.
Program decode_program(Device& device, const Model& model, std::uint32_t rows, std::uint32_t bucket, bool masks_follow);

// One chunk of `rows` tokens of one timeline; a segment per layer, so the host may cancel in between. Row 0 of `step` is the
// chunk. With `wants_logits` the last token goes through the head and the sampler; row 1 of `step` is that token.
Program prefill_program(Device& device, const Model& model, std::uint32_t rows, bool wants_logits);

// The head and the sampler, shared by both programs: `step` is where the rows' StepRows start, `x` their residual stream.
class Recorder;
void record_head(Recorder& op, const Model& model, const Range& step, const Range& x, std::uint32_t rows);
void record_sampler(Recorder& op, const Model& model, const Range& step, std::uint32_t rows);

}  // namespace lily
