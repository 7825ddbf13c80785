// The sizes of ModelConstants by name: Python gives them under these names, shaders get them as macros LILY_<NAME>.
#pragma once

#include "lily_args.h"

namespace lily {

struct ModelSize {
  const char* name;
  lily_u32 ModelConstants::* field;
};

inline constexpr ModelSize kModelSizes[] = {
    {"hidden_size", &ModelConstants::hidden_size},
    {"vocab_size", &ModelConstants::vocab_size},
    {"num_attention_layers", &ModelConstants::num_attention_layers},
    {"num_linear_layers", &ModelConstants::num_linear_layers},
    {"num_attention_heads", &ModelConstants::num_attention_heads},
    {"num_key_value_heads", &ModelConstants::num_key_value_heads},
    {"head_dim", &ModelConstants::head_dim},
    {"rotary_dim", &ModelConstants::rotary_dim},
    {"linear_num_key_heads", &ModelConstants::linear_num_key_heads},
    {"linear_num_value_heads", &ModelConstants::linear_num_value_heads},
    {"linear_key_head_dim", &ModelConstants::linear_key_head_dim},
    {"linear_value_head_dim", &ModelConstants::linear_value_head_dim},
    {"num_experts", &ModelConstants::num_experts},
    {"num_experts_per_tok", &ModelConstants::num_experts_per_tok},
    {"moe_intermediate_size", &ModelConstants::moe_intermediate_size},
    {"shared_expert_intermediate_size", &ModelConstants::shared_expert_intermediate_size},
};

}  // namespace lily
