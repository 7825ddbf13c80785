// What an encoder records, for both generations of the API: dispatches in epochs, with a barrier between two epochs.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compiler.h"
#include "softmetal.h"

namespace softmetal {

inline constexpr unsigned kMaxBindings = 31;
using Bindings = std::array<std::uintptr_t, kMaxBindings>;  // addresses; 0: nothing bound

struct Pipeline {
  std::shared_ptr<ShaderLibrary> library;
  const msl_kernel* kernel = nullptr;
};

struct RecordedDispatch {
  Pipeline pipeline;
  Bindings bindings{};
  msl_uint3 groups{}, threads{};

  std::string name() const { return pipeline.kernel->name; }
  bool has(unsigned argument) const { return pipeline.kernel->buffers >> argument & 1; }
  bool may_write(unsigned argument) const { return pipeline.kernel->written >> argument & 1; }
};

class Stream {
 public:
  bool is_concurrent = true;
  bool waits_for_queue = false;  // begins with a barrier behind everything that the queue was given before

  void append(RecordedDispatch dispatch) { epochs_.back().push_back(std::move(dispatch)); }
  void barrier() { epochs_.emplace_back(); }
  bool is_empty() const { return epochs_.size() == 1 && epochs_[0].empty(); }

  // Addresses that the kernels read or write, and whether any may write.
  std::map<std::uintptr_t, bool> uses() const;

  // Runs everything; the first thing that goes wrong ends it and is returned with what kind it is.
  struct Result {
    std::string error;
    bool is_page_fault = false;
  };
  // is_resident(begin of a buffer) says whether the GPU may touch that buffer.
  Result run(const std::function<bool(std::uintptr_t)>& is_resident) const;

 private:
  Result run(const RecordedDispatch& dispatch, const std::function<bool(std::uintptr_t)>& is_resident) const;
  std::vector<std::vector<RecordedDispatch>> epochs_{1};
};

}  // namespace softmetal
