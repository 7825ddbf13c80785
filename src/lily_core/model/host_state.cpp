#include "model/host_state.h"

#include <algorithm>
#include <functional>

namespace lily {
namespace {

Range slot_range(const std::unique_ptr<Buffer>& pool, std::uint32_t slot, std::uint64_t num_floats) {
  const std::uint64_t bytes = 4 * num_floats;
  return {pool.get(), slot * bytes, bytes};
}

// Calls `copy` with each stretch of KV that is contiguous in both places, and at which byte of layer `layer` of a HostState it
// starts.
void for_each_stretch(const ModelConfig& c, const State& state, const std::vector<std::uint32_t>& pages, std::uint32_t num_tokens,
                      const std::function<void(const Range& range, std::uint32_t layer, std::size_t offset)>& copy) {
  const std::uint64_t row = std::uint64_t{c.precision.kv_bytes} * c.head_dim, head = LILY_PAGE_TOKENS * row;
  const std::uint32_t heads = 2 * c.num_key_value_heads;  // keys, then values
  for (std::uint32_t begin = 0; begin < num_tokens; begin += LILY_PAGE_TOKENS) {
    const std::uint64_t page = pages[begin / LILY_PAGE_TOKENS] * page_bytes(c);
    const std::uint64_t rows = std::min(LILY_PAGE_TOKENS, num_tokens - begin);
    for (std::uint32_t layer = 0; layer < c.num_attention_layers; ++layer)
      for (std::uint32_t h = 0; h < heads; ++h)
        copy({state.kv.get(), page + (layer * heads + h) * head, rows * row}, layer,
             (std::size_t{h} * num_tokens + begin) * row);
  }
}

}  // namespace

HostState make_host_state(const ModelConfig& c, std::uint32_t num_tokens) {
  HostState host;
  host.num_tokens = num_tokens;
  host.recurrent_state.resize(std::size_t{c.num_linear_layers} * c.linear_num_value_heads * c.linear_key_head_dim *
                              c.linear_value_head_dim);
  host.conv_state.resize(std::size_t{c.num_linear_layers} * (LILY_CONV_TAPS - 1) * c.conv_channels());
  const std::vector<std::byte> layer(std::size_t{2} * c.num_key_value_heads * num_tokens * c.head_dim * c.precision.kv_bytes);
  host.kv.assign(c.num_attention_layers, layer);
  return host;
}

HostState read_state(Device& device, const ModelConfig& config, const State& state, const TokenState& from) {
  HostState host = make_host_state(config, from.num_tokens);
  device.read(slot_range(state.recurrent_state, from.slot, host.recurrent_state.size()), host.recurrent_state.data());
  device.read(slot_range(state.conv_state, from.slot, host.conv_state.size()), host.conv_state.data());
  for_each_stretch(config, state, from.pages, from.num_tokens, [&](const Range& range, std::uint32_t layer, std::size_t offset) {
    device.read(range, host.kv[layer].data() + offset);
  });
  return host;
}

void write_state(Device& device, const ModelConfig& config, State& state, std::uint32_t slot,
                 const std::vector<std::uint32_t>& pages, const HostState& from) {
  device.write(slot_range(state.recurrent_state, slot, from.recurrent_state.size()), from.recurrent_state.data());
  device.write(slot_range(state.conv_state, slot, from.conv_state.size()), from.conv_state.data());
  for_each_stretch(config, state, pages, from.num_tokens, [&](const Range& range, std::uint32_t layer, std::size_t offset) {
    device.write(range, from.kv[layer].data() + offset);
  });
}

}  // namespace lily
