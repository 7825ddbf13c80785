#include "device/metal/weight_windows.h"

#include <algorithm>
#include <utility>

#include "device/device.h"
#include "device/metal/metal_buffer.h"
#include "model/safetensors.h"

namespace lily::metal {
namespace {

constexpr std::size_t kLoadBytes = 16;
constexpr std::uint64_t kPage = MappedFile::kAlignment;

// Bytes [begin, end) of a file, in whole pages.
struct Window {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// The window that holds `tensor`. Windows follow the tensors in the order of the file: each starts at the page of the first tensor
// that no longer fits into the one before, so two neighbours may share a page.
Window window_of(const TensorSource& tensor, std::uint64_t max_length) {
  Window window;
  for (const TensorSource& other : tensor.file().tensors()) {
    const std::uint64_t end = (other.offset() + other.length() + kPage - 1) / kPage * kPage;
    if (window.end == 0 || end - window.begin > max_length) {
      if (other.offset() > tensor.offset()) break;
      window.begin = other.offset() / kPage * kPage;
    }
    window.end = end;
  }
  return window;
}

}  // namespace

WeightWindows::WeightWindows(id<MTLDevice> device, std::shared_ptr<Residency> residency, std::shared_ptr<Progress> progress)
    : device_(device), residency_(std::move(residency)), progress_(std::move(progress)) {}

std::unique_ptr<Buffer> WeightWindows::map(const TensorSource& tensor) {
  if (!tensor.mapped(kLoadBytes)) return nullptr;
  const std::uint64_t max_length = device_.maxBufferLength / kPage * kPage;
  const Window window = window_of(tensor, max_length);
  if (window.end - window.begin > max_length) return nullptr;
  const std::byte* begin = tensor.file().data() + window.begin;
  std::shared_ptr<Allocation> allocation = windows_[begin].lock();
  if (!allocation || allocation->buffer().length != window.end - window.begin) {
    id<MTLBuffer> buffer =
        [device_ newBufferWithBytesNoCopy:const_cast<std::byte*>(begin)
                                   length:window.end - window.begin
                                  options:MTLResourceStorageModeShared | MTLResourceHazardTrackingModeUntracked
                              deallocator:nil];
    if (!buffer)
      throw DeviceError("metal", "", "out_of_memory",
                        "Metal refuses to wrap " + std::to_string(window.end - window.begin) + " bytes of " + tensor.path());
    allocation = std::make_shared<Allocation>(buffer, residency_, progress_);
    windows_[begin] = allocation;
  }
  return std::make_unique<MetalBuffer>(tensor.name(), tensor.length(), allocation, tensor.offset() - window.begin);
}

}  // namespace lily::metal
