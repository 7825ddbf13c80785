// Fuzz target: the input is a safetensors file. What is accepted must cover the data exactly, and read as it was written.
#include <cstring>
#include <vector>

#include "error.h"
#include "folder.h"
#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const lily::fuzz::Folder folder;
  const std::string path = folder.write("model.safetensors", data, size);
  try {
    const lily::TensorFile file(path);
    std::uint64_t end = file.tensors().empty() ? size : file.tensors().front().offset();
    for (const lily::TensorSource& tensor : file.tensors()) {
      if (tensor.offset() != end) std::abort();
      end += tensor.length();
      if (end > size) std::abort();
      std::uint64_t elements = 1;
      for (const std::uint64_t n : tensor.shape()) elements *= n;
      if (const std::size_t bytes = lily::size_of(tensor.dtype()); bytes && elements * bytes != tensor.length()) std::abort();
      if (tensor.length() == 0) continue;
      std::vector<std::byte> read(tensor.length());
      tensor.read(read.data(), 0, read.size());
      if (std::memcmp(read.data(), data + tensor.offset(), read.size()) != 0) std::abort();
      if (std::memcmp(tensor.mapped(1), data + tensor.offset(), read.size()) != 0) std::abort();
    }
    if (end != size) std::abort();
  } catch (const lily::CheckpointError& error) {
    if (error.path != path) std::abort();
  }
  return 0;
}
