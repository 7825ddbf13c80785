// A model on a device: everything that the dispatches of its programs bind.
#pragma once

#include <cstdint>
#include <vector>

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

// One layer: what mixes tokens is attention or a delta net, then comes its mixture of experts.
struct Layer {
  const AttentionLayerWeights* attention;  // or nullptr
  const LinearLayerWeights* linear;        // or nullptr
  std::uint32_t index;                     // among the layers of its kind
  std::uint32_t number;                    // among all
  const MoeWeights& moe() const { return attention ? attention->moe : linear->moe; }
};

// In the order of the model.
std::vector<Layer> layers(const Model& model);

// Row `layer` of expert_slot.
Range expert_slots(const Model& model, std::uint32_t layer);

}  // namespace lily
