// The JSON of checkpoint files: safetensors headers and shard indexes. Strict: both come from outside.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lily {

// One tensor as the header of a safetensors file describes it; offsets count from the first byte of data.
struct HeaderEntry {
  std::string name;
  std::string dtype = {};
  std::vector<std::uint64_t> shape = {};
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The tensors of a header, in its order. Names are unique; nothing is said yet about types, sizes and offsets.
// Throws CheckpointError naming `path` and the byte where the text stops being a header.
std::vector<HeaderEntry> parse_header(std::string_view text, const std::string& path);

// weight_map of a model.safetensors.index.json: tensor name -> file name. Throws like parse_header.
std::unordered_map<std::string, std::string> parse_index(std::string_view text, const std::string& path);

}  // namespace lily
