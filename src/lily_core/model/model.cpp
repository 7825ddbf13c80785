#include "model/model.h"

#include <cmath>
#include <cstdint>
#include <numbers>
#include <utility>
#include <vector>

namespace lily {
namespace {

template <typename T>
Tensor upload(Device& device, const char* name, const std::vector<T>& values) {
  const std::uint64_t length = values.size() * sizeof(T);
  Tensor tensor = device.allocate(name, length, Memory::kPrivate);
  device.write({tensor.get(), 0, length}, values.data());
  return tensor;
}

// Turns per position of each rotated pair, as two floats: a float alone is off by 0.006 rad at position 262,143.
Tensor rope_table(Device& device, const ModelConfig& config) {
  std::vector<float> table;
  for (std::uint32_t j = 0; j < config.rotary_dim / 2; ++j) {
    const double turns = std::pow(config.rope_theta, -2.0 * j / config.rotary_dim) / (2 * std::numbers::pi);
    const auto high = static_cast<float>(turns);
    table.push_back(high);
    table.push_back(static_cast<float>(turns - high));
  }
  return upload(device, "rope", table);
}

Tensor identity_slots(Device& device, const ModelConfig& config) {
  std::vector<std::uint32_t> slots;
  for (std::uint32_t layer = 0; layer < config.num_hidden_layers; ++layer)
    for (std::uint32_t expert = 0; expert < config.num_experts; ++expert) slots.push_back(expert);
  return upload(device, "expert_slot", slots);
}

}  // namespace

Model::Model(Device& device, const ModelConfig& model_config, Weights model_weights, const StateSizes& sizes)
    : config(model_config),
      weights(std::move(model_weights)),
      state(device, config, sizes),
      activations(device, config, sizes.num_timelines),
      io(device, config, sizes.num_timelines),
      rope(rope_table(device, config)),
      expert_slot(identity_slots(device, config)) {}

std::vector<Layer> layers(const Model& model) {
  std::vector<Layer> all;
  std::uint32_t attention = 0, linear = 0;
  for (std::uint32_t number = 0; number < model.config.num_hidden_layers; ++number) {
    if (model.config.is_full_attention[number]) {
      all.push_back({&model.weights.attention_layers[attention], nullptr, attention, number});
      ++attention;
    } else {
      all.push_back({nullptr, &model.weights.linear_layers[linear], linear, number});
      ++linear;
    }
  }
  return all;
}

Range expert_slots(const Model& model, std::uint32_t layer) {
  const std::uint64_t length = std::uint64_t{4} * model.config.num_experts;
  return {model.expert_slot.get(), layer * length, length};
}

}  // namespace lily
