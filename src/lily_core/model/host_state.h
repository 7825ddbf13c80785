// State in host memory, packed: what files hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/device.h"
#include "model/model_config.h"
#include "model/state.h"

namespace lily {

struct HostState {
  std::uint32_t num_tokens = 0;
  std::vector<float> recurrent_state;  // [linear layer, Hv, dk, dv]
  std::vector<float> conv_state;       // [linear layer, 3, C]
  // Per attention layer [K | V, Hkv, num_tokens, D]: floats, or halves where precision.kv_bytes is 2.
  std::vector<std::vector<std::byte>> kv;
};

// Sized for num_tokens tokens, filled with zeros.
HostState make_host_state(const ModelConfig& config, std::uint32_t num_tokens);

// Copies the state of `from` off the device.
HostState read_state(Device& device, const ModelConfig& config, const State& state, const TokenState& from);
// Copies `from` into a slot and pages of the device that hold nothing else yet.
void write_state(Device& device, const ModelConfig& config, State& state, std::uint32_t slot,
                 const std::vector<std::uint32_t>& pages, const HostState& from);

}  // namespace lily
