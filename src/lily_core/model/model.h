// A model on a device: everything that the dispatches of its programs bind.
#pragma once

#include <cstdint>

#include "device/device.h"
#include "model/activations.h"
#include "model/model_config.h"
#include "model/state.h"
#include "model/step_io.h"
#include "model/weights.h"

namespace lily {

struct Model {
  // `config` has its max_pages, precision and traits.
  Model(Device& device, const ModelConfig& config, Weights weights, const StateSizes& sizes);

  ModelConfig config;
  Weights weights;
  State state;
  Activations activations;
  StepIo io;
  Tensor rope;         // [rotary_dim / 2, 2] f32
  Tensor expert_slot;  // [layers, E] u32
};

// Row `layer` of expert_slot.
Range expert_slots(const Model& model, std::uint32_t layer);

}  // namespace lily
