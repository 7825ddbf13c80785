// A tensor of a checkpoint file, not yet read: its type, shape and place, and two ways to its bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lily {

enum class Dtype : std::uint8_t { kU32, kF32, kF16, kBF16, kOther };

// Bytes of an element; 0 for kOther.
std::size_t size_of(Dtype dtype);
// Name in the safetensors format: "U32", "F32", "F16", "BF16".
const char* name_of(Dtype dtype);

class TensorFile;  // an open, mapped safetensors file; model/safetensors.h

class TensorSource {
 public:
  TensorSource(const TensorFile& file, std::string name, Dtype dtype, std::string dtype_name, std::vector<std::uint64_t> shape,
               std::uint64_t offset, std::uint64_t length);

  const std::string& name() const { return name_; }
  const TensorFile& file() const { return *file_; }
  const std::string& path() const;  // of the file
  Dtype dtype() const { return dtype_; }
  const std::string& dtype_name() const { return dtype_name_; }  // as written in the file
  const std::vector<std::uint64_t>& shape() const { return shape_; }
  std::uint64_t offset() const { return offset_; }  // from the start of the file
  std::uint64_t length() const { return length_; }

  // Address in the mapping when it is a multiple of `alignment`, else nullptr. Lives as long as the file, which must not change.
  const std::byte* mapped(std::size_t alignment) const;
  // Reads bytes [begin, begin + length) of the tensor with pread, without keeping them in the page cache.
  // Throws CheckpointError when the file has become shorter or cannot be read.
  void read(void* to, std::uint64_t begin, std::uint64_t length) const;

 private:
  const TensorFile* file_;
  std::string name_;
  Dtype dtype_;
  std::string dtype_name_;
  std::vector<std::uint64_t> shape_;
  std::uint64_t offset_;
  std::uint64_t length_;
};

// "[8, 64, 16]", for messages.
std::string shape_text(const std::vector<std::uint64_t>& shape);

}  // namespace lily
