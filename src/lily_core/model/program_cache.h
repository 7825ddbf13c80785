// The programs of a model, ready to replay.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <utility>

#include "device/device.h"
#include "model/programs.h"

namespace lily {

struct ProgramStats {
  std::uint32_t dispatches = 0;
  std::uint32_t levels = 0;
};

struct CachedProgram {
  std::unique_ptr<Executable> executable;
  ProgramStats stats;
};

// Programs are recorded and compiled when they are first asked for. Few shapes recur: step buckets, full chunks, last pieces of
// prompts; those used last are kept.
class ProgramCache {
 public:
  ProgramCache(Device& device, const Model& model) : device_(device), model_(model) {}

  // As in programs.h; valid until the next call. The step program is that of the bucket which holds `context`.
  CachedProgram& decode(std::uint32_t rows, std::uint32_t context, bool masks_follow);
  CachedProgram& prefill(std::uint32_t rows, bool wants_logits);

 private:
  using Key = std::array<std::uint32_t, 4>;
  CachedProgram& get(const Key& key, const std::function<Program()>& record);

  Device& device_;
  const Model& model_;
  std::list<std::pair<Key, CachedProgram>> entries_;  // the latest used first
};

}  // namespace lily
