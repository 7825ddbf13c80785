#include "model/tensor_source.h"

#include <stdexcept>
#include <utility>

#include "model/safetensors.h"

namespace lily {

std::size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kU32:
    case Dtype::kF32:
      return 4;
    case Dtype::kF16:
    case Dtype::kBF16:
      return 2;
    case Dtype::kOther:
      break;
  }
  return 0;
}

const char* name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kU32:
      return "U32";
    case Dtype::kF32:
      return "F32";
    case Dtype::kF16:
      return "F16";
    case Dtype::kBF16:
      return "BF16";
    case Dtype::kOther:
      break;
  }
  return "another type";
}

TensorSource::TensorSource(const TensorFile& file, std::string name, Dtype dtype, std::string dtype_name,
                           std::vector<std::uint64_t> shape, std::uint64_t offset, std::uint64_t length)
    : file_(&file),
      name_(std::move(name)),
      dtype_(dtype),
      dtype_name_(std::move(dtype_name)),
      shape_(std::move(shape)),
      offset_(offset),
      length_(length) {}

const std::string& TensorSource::path() const { return file_->path(); }

const std::byte* TensorSource::mapped(std::size_t alignment) const {
  const std::byte* address = file_->file().data() + offset_;
  if (reinterpret_cast<std::uintptr_t>(address) % alignment != 0) return nullptr;
  file_->lend();
  return address;
}

void TensorSource::read(void* to, std::uint64_t begin, std::uint64_t length) const {
  if (begin > length_ || length > length_ - begin) throw std::out_of_range("read past the end of tensor " + name_);
  file_->file().read(to, offset_ + begin, length);
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

}  // namespace lily
