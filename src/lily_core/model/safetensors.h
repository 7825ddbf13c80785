// A safetensors file: opened, mapped and checked, with a TensorSource for each tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model/mapped_file.h"
#include "model/tensor_source.h"

namespace lily {

class TensorFile {
 public:
  // As strict as the safetensors library: header at most 100 MB, unique names, known dtypes, length = shape × dtype, and data
  // that is covered exactly once, without gap or overlap, to the last byte. Throws CheckpointError naming file and tensor.
  explicit TensorFile(std::string path);
  TensorFile(const TensorFile&) = delete;  // the tensors point to it
  TensorFile& operator=(const TensorFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<TensorSource>& tensors() const { return tensors_; }  // in the order of their bytes

  const MappedFile& file() const { return file_; }
  const std::byte* data() const { return file_.data(); }  // of the whole file, mapped
  // Says that mapped bytes are used from now on, so that the file must stay as it is.
  void lend() const { is_lent_ = true; }
  bool is_lent() const { return is_lent_; }

 private:
  std::string path_;
  MappedFile file_;
  std::vector<TensorSource> tensors_;
  mutable bool is_lent_ = false;
};

}  // namespace lily
