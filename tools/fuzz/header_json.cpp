// Fuzz target: the input is the JSON text of a safetensors header, and that of a shard index.
#include <cstdlib>
#include <unordered_set>

#include "error.h"
#include "model/header_json.h"

namespace {

const std::string kPath = "input";

void parse_as_header(std::string_view text) {
  try {
    std::unordered_set<std::string> names;
    for (const lily::HeaderEntry& entry : lily::parse_header(text, kPath))
      if (!names.insert(entry.name).second) std::abort();
  } catch (const lily::CheckpointError& error) {
    if (error.path != kPath) std::abort();
  }
}

void parse_as_index(std::string_view text) {
  try {
    lily::parse_index(text, kPath);
  } catch (const lily::CheckpointError& error) {
    if (error.path != kPath) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  parse_as_header(text);
  parse_as_index(text);
  return 0;
}
