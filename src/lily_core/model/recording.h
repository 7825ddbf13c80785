// The programs of a checkpoint as a GPU would run them, without its weights: only the headers of its files are read, and the
// small vectors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/outline_device.h"
#include "model/programs.h"

namespace lily {

class Recording {
 public:
  // For a GPU that may hold `device_bytes`. Throws CheckpointError.
  Recording(const std::string& folder, const ModelConfig& config, std::uint32_t max_context, std::uint64_t device_bytes);

  std::uint32_t chunk_tokens() const { return config_.traits.chunk_tokens; }

  // One step of `rows` rows at positions below `context`, and one chunk of `rows` tokens without the head. What a program binds
  // belongs to the recording.
  Program decode(std::uint32_t rows, std::uint32_t context);
  Program prefill(std::uint32_t rows);

 private:
  Model model() { return {config_, weights_, *state_, *activations_, *io_, rope_, expert_slot_}; }

  ModelConfig config_;
  Checkpoint checkpoint_;
  OutlineDevice device_;
  Weights weights_;
  std::unique_ptr<State> state_;
  std::unique_ptr<Activations> activations_;
  std::unique_ptr<StepIo> io_;
  Tensor rope_;
  Tensor expert_slot_;
};

}  // namespace lily
