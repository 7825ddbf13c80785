// The programs of a checkpoint as a GPU would run them, without its weights: only the headers of its files are read, and the
// small vectors.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/outline_device.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "program/program.h"

namespace lily {

class ProgramOutline {
 public:
  // For a GPU that may hold `device_bytes`. Throws CheckpointError.
  ProgramOutline(const std::string& folder, const ModelConfig& config, std::uint32_t max_context, std::uint64_t device_bytes);

  std::uint32_t chunk_tokens() const { return model_->config.traits.chunk_tokens; }

  // One step of `rows` rows at positions below `context`, and one chunk of `rows` tokens without the head. What a program binds
  // belongs to the outline.
  Program decode(std::uint32_t rows, std::uint32_t context);
  Program prefill(std::uint32_t rows);

 private:
  Checkpoint checkpoint_;
  OutlineDevice device_;
  std::unique_ptr<Model> model_;
};

}  // namespace lily
