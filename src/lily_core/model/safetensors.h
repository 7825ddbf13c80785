// A safetensors file: opened, mapped and checked, with a TensorSource for each tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model/tensor_source.h"

namespace lily {

// An open descriptor and a read-only mapping of a whole file.
class MappedFile {
 public:
  // The mapping starts at a multiple of this, and what lies behind it up to the next multiple belongs to it: the page of Apple
  // silicon, in which Metal wraps memory.
  static constexpr std::uint64_t kAlignment = 16384;

  explicit MappedFile(const std::string& path);  // throws CheckpointError
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  int descriptor() const { return descriptor_; }
  const std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }

 private:
  int descriptor_ = -1;
  const std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  void* reserved_ = nullptr;  // the addresses that hold the mapping
  std::uint64_t reserved_size_ = 0;
};

class TensorFile {
 public:
  // As strict as the safetensors library: header at most 100 MB, unique names, known dtypes, length = shape × dtype, and data
  // that is covered exactly once, without gap or overlap, to the last byte. Throws CheckpointError naming file and tensor.
  explicit TensorFile(std::string path);
  TensorFile(const TensorFile&) = delete;  // the tensors point to it
  TensorFile& operator=(const TensorFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<TensorSource>& tensors() const { return tensors_; }  // in the order of their bytes

  const std::byte* data() const { return file_.data(); }  // of the whole file, mapped
  // Reads `length` bytes from `offset` of the file and drops them from the page cache: memory must not hold them twice.
  void read(void* to, std::uint64_t offset, std::uint64_t length) const;

 private:
  std::string path_;
  MappedFile file_;
  std::vector<TensorSource> tensors_;
};

}  // namespace lily
