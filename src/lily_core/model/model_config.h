// What the C++ side knows of a model: checked and filled in from Python (python/lily/config.py).
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "device/device.h"
#include "lily_args.h"

namespace lily {

enum class Family : std::uint8_t {
  kQwen35Moe,   // "qwen3_5_moe"
  kQwen3Next,  // "qwen3_next"
};

// The sizes that kernels see, and what only the host needs. The runtime sets max_pages, precision and traits.
struct ModelConfig : ModelConstants {
  Family family;
  std::uint32_t num_hidden_layers;
  std::uint32_t max_pages = 0;  // of a timeline: the length of its part of the page table
  std::vector<bool> is_full_attention;  // [num_hidden_layers]; else the layer is Gated DeltaNet
  double rope_theta;
  Precision precision;
  DeviceTraits traits;  // of the device that runs it
  std::uint32_t default_bits;                                  // of a quantised module that module_bits does not name
  std::unordered_map<std::string, std::uint32_t> module_bits;  // full module path -> 4 or 8

  std::uint32_t bits_of(const std::string& module) const {
    const auto found = module_bits.find(module);
    return found == module_bits.end() ? default_bits : found->second;
  }
};

}  // namespace lily
