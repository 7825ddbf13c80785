#include "bindings/sizes.h"

#include <stdexcept>

namespace lily {

ModelConstants constants_from(const std::map<std::string, std::uint32_t>& sizes, float rms_norm_eps) {
  ModelConstants c{};
  c.rms_norm_eps = rms_norm_eps;
  const std::map<std::string, std::uint32_t*> fields = {
      {"hidden_size", &c.hidden_size},
      {"vocab_size", &c.vocab_size},
      {"num_attention_layers", &c.num_attention_layers},
      {"num_linear_layers", &c.num_linear_layers},
      {"num_attention_heads", &c.num_attention_heads},
      {"num_key_value_heads", &c.num_key_value_heads},
      {"head_dim", &c.head_dim},
      {"rotary_dim", &c.rotary_dim},
      {"linear_num_key_heads", &c.linear_num_key_heads},
      {"linear_num_value_heads", &c.linear_num_value_heads},
      {"linear_key_head_dim", &c.linear_key_head_dim},
      {"linear_value_head_dim", &c.linear_value_head_dim},
      {"linear_conv_kernel_dim", &c.linear_conv_kernel_dim},
      {"num_experts", &c.num_experts},
      {"num_experts_per_tok", &c.num_experts_per_tok},
      {"moe_intermediate_size", &c.moe_intermediate_size},
      {"shared_expert_intermediate_size", &c.shared_expert_intermediate_size},
      {"max_pages", &c.max_pages},
  };
  for (const auto& [name, value] : sizes) {
    const auto field = fields.find(name);
    if (field == fields.end()) throw std::invalid_argument("unknown model size \"" + name + "\"");
    *field->second = value;
  }
  for (const auto& [name, field] : fields)
    if (name != "max_pages" && !sizes.contains(name)) throw std::invalid_argument("missing model size \"" + name + "\"");
  return c;
}

}  // namespace lily
