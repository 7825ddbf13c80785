#include "model/activations.h"

#include <algorithm>
#include <string>

namespace lily {
namespace {

using Member = Range Activations::*;

struct Part {
  Member range;
  const char* name;
  std::uint64_t length;  // in elements
  std::uint64_t element_bytes = 4;
  Member place = nullptr;  // of another part, in whose buffer this one lies

  std::uint64_t bytes() const { return length * element_bytes; }
};

// A buffer, with all parts that lie in it.
struct Place {
  Member owner;
  std::string names;
  std::uint64_t bytes = 0;
};

// Everything but the logits, whose size depends on the number of timelines.
std::vector<Part> parts(const ModelConfig& c) {
  using A = Activations;
  const std::uint32_t rows = std::max(kMaxStepRows, c.traits.chunk_tokens);
  const std::uint64_t operand = c.precision.activation_bytes;
  const std::uint64_t k = c.num_experts_per_tok, value_heads = c.linear_num_value_heads;
  const std::uint64_t query = std::uint64_t{c.num_attention_heads} * c.head_dim;
  const std::uint64_t key_value = std::uint64_t{c.num_key_value_heads} * c.head_dim;
  return {
      {&A::x, "x", std::uint64_t{rows} * c.hidden_size},
      {&A::normed, "normed", std::uint64_t{rows} * c.hidden_size, operand},
      {&A::qkv, "qkv", std::uint64_t{rows} * c.conv_channels(), operand, &A::d},
      {&A::z, "z", std::uint64_t{rows} * c.value_dim(), operand},
      {&A::ba, "ba", std::uint64_t{rows} * 2 * value_heads},
      {&A::gdn_q, "gdn_q", std::uint64_t{rows} * c.key_dim()},
      {&A::gdn_k, "gdn_k", std::uint64_t{rows} * c.key_dim()},
      {&A::gdn_v, "gdn_v", std::uint64_t{rows} * c.value_dim()},
      {&A::g, "g", std::uint64_t{rows} * value_heads},
      {&A::beta, "beta", std::uint64_t{rows} * value_heads},
      {&A::u, "u", std::uint64_t{rows} * c.value_dim()},
      {&A::w, "w", std::uint64_t{rows} * value_heads * c.linear_key_head_dim},
      {&A::qk, "qk", std::uint64_t{rows} * value_heads * LILY_DELTA_CHUNK},
      {&A::o, "o", std::uint64_t{rows} * c.value_dim(), 4, &A::gdn_v},
      {&A::gated, "gated", std::uint64_t{rows} * c.value_dim(), operand, &A::u},
      {&A::q, "q", std::uint64_t{rows} * query, operand, &A::d},
      {&A::gate, "gate", std::uint64_t{rows} * query, operand, &A::z},
      {&A::k, "k", std::uint64_t{rows} * key_value, operand},
      {&A::v, "v", std::uint64_t{rows} * key_value, operand},
      // Of the splits of a step's rows, or of a chunk's rows.
      {&A::partial, "partial",
       std::uint64_t{std::max(kMaxStepRows * kMaxSplits, rows)} * c.num_attention_heads * (c.head_dim + 2), 4, &A::u},
      {&A::y, "y", std::uint64_t{rows} * query, operand, &A::w},
      {&A::router_logits, "router_logits", std::uint64_t{rows} * c.num_experts},
      {&A::shared_gate, "shared_gate", rows},
      {&A::topk_ids, "topk_ids", std::uint64_t{rows} * k},
      {&A::topk_weights, "topk_weights", std::uint64_t{rows} * k},
      {&A::order, "order", std::uint64_t{rows} * k},
      {&A::blocks, "blocks", std::uint64_t{c.max_expert_blocks(rows)} * sizeof(ExpertBlock) / 4},
      {&A::h, "h", std::uint64_t{rows} * k * c.moe_intermediate_size, operand, &A::w},
      {&A::d, "d", std::uint64_t{rows} * k * c.hidden_size},
      {&A::hs, "hs", std::uint64_t{rows} * c.shared_expert_intermediate_size, operand},
      {&A::s, "s", std::uint64_t{rows} * c.hidden_size, 4, &A::gdn_q},
      {&A::adjusted, "adjusted", std::uint64_t{kMaxStepRows} * c.vocab_size},
      {&A::sample_blocks, "sample_blocks", std::uint64_t{kMaxStepRows} * c.sample_blocks() * sizeof(SampleBlock) / 4},
  };
}

std::vector<Place> places(const ModelConfig& config) {
  std::vector<Place> all;
  const std::vector<Part> list = parts(config);
  for (const Part& part : list)
    if (!part.place) all.push_back({part.range, part.name, part.bytes()});
  for (const Part& part : list) {
    if (!part.place) continue;
    Place& place = *std::ranges::find(all, part.place, &Place::owner);
    place.names += std::string(", ") + part.name;
    place.bytes = std::max(place.bytes, part.bytes());
  }
  return all;
}

}  // namespace

Activations::Activations(Device& device, const ModelConfig& config, std::uint32_t num_timelines) {
  for (const Place& place : places(config)) {
    buffers_.push_back(device.allocate(place.names, place.bytes, Memory::kPrivate));
    this->*place.owner = {buffers_.back().get(), 0, place.bytes};
    bytes_ += place.bytes;
  }
  for (const Part& part : parts(config)) {
    const Range& place = this->*(part.place ? part.place : part.range);
    this->*part.range = {place.buffer, 0, part.bytes(), part.name};
  }
  const std::uint64_t logits_bytes = std::uint64_t{4} * num_timelines * config.vocab_size;
  logits = device.allocate("logits", logits_bytes, Memory::kShared);
  bytes_ += logits_bytes;
}

std::uint64_t activation_bytes(const ModelConfig& config) {
  std::uint64_t bytes = 0;
  for (const Place& place : places(config)) bytes += place.bytes;
  return bytes;
}

}  // namespace lily
