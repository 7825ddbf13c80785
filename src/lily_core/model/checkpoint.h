// A model's folder of safetensors files, in the MLX layout. Every tensor is taken, or skipped by name; nothing is left over.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "error.h"
#include "model/safetensors.h"

namespace lily {

class Checkpoint {
 public:
  // Opens the files that model.safetensors.index.json names, or else all model*.safetensors, and checks their headers.
  // Throws CheckpointError, also for weights in the Hugging Face layout (with the command that converts them).
  explicit Checkpoint(const std::string& folder);

  const std::string& folder() const { return folder_; }
  std::size_t num_files() const { return files_.size(); }
  // Path of a multi-token-prediction block beside the model, which is found and left alone.
  const std::optional<std::string>& mtp_path() const { return mtp_path_; }

  bool contains(const std::string& name) const { return tensors_.contains(name); }
  // The tensor of that name, which must have one of `dtypes` and exactly `shape`; it counts as used from now on.
  const TensorSource& take(const std::string& name, const std::vector<std::uint64_t>& shape, std::initializer_list<Dtype> dtypes);
  // Leaves all tensors with that prefix unused, on purpose.
  void skip(std::string_view prefix);
  // Ends loading. Throws CheckpointError naming tensors that were neither taken nor skipped, or a file that changed meanwhile.
  void finish() const;
  // Throws CheckpointError naming a file that changed although the weights lie in it.
  void require_unchanged() const;

  std::uint64_t skipped_bytes() const { return skipped_bytes_; }
  std::uint64_t remaining_bytes() const;  // of tensors neither taken nor skipped so far
  std::uint64_t held_bytes() const;       // that these will need on a device

 private:
  struct Entry {
    const TensorSource* tensor;
    bool used;
  };

  void open_indexed(const std::string& index_path);
  void open_all();
  void open_file(const std::string& path);
  void refuse_hugging_face_layout() const;

  std::string folder_;
  std::vector<std::unique_ptr<TensorFile>> files_;
  std::unordered_map<std::string, Entry> tensors_;
  std::optional<std::string> mtp_path_;
  std::uint64_t skipped_bytes_ = 0;
};

// The command that makes a checkpoint which lily reads, from a folder of original weights.
std::string convert_command(const std::string& folder);

}  // namespace lily
