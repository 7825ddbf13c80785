// The programs of the 35B as a GPU would run them, for a folder with the headers of its checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "model/program_outline.h"

inline lily::ModelConfig config_of_35b() {
  lily::ModelConfig config{};
  static_cast<ModelConstants&>(config) = {.hidden_size = 2048,
                                                .vocab_size = 248'320,
                                                .num_attention_layers = 10,
                                                .num_linear_layers = 30,
                                                .num_attention_heads = 16,
                                                .num_key_value_heads = 2,
                                                .head_dim = 256,
                                                .rotary_dim = 64,
                                                .linear_num_key_heads = 16,
                                                .linear_num_value_heads = 32,
                                                .linear_key_head_dim = 128,
                                                .linear_value_head_dim = 128,
                                                .num_experts = 256,
                                                .num_experts_per_tok = 8,
                                                .moe_intermediate_size = 512,
                                                .shared_expert_intermediate_size = 512,
                                                .rms_norm_eps = 1e-6f};
  config.family = lily::Family::kQwen35Moe;
  config.num_hidden_layers = 40;
  config.rope_theta = 1e7;
  config.default_bits = 4;
  for (std::uint32_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    config.is_full_attention.push_back(layer % 4 == 3);
    for (const char* module : {"gate", "shared_expert_gate"})
      config.module_bits["language_model.model.layers." + std::to_string(layer) + ".mlp." + module] = 8;
  }
  return config;
}

inline lily::ProgramOutline outline_of_35b(const std::string& folder, std::uint32_t max_context, std::uint64_t device_gib) {
  return lily::ProgramOutline(folder, config_of_35b(), max_context, device_gib << 30);
}
