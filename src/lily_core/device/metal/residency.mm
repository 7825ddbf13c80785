#include "device/metal/residency.h"

#include <utility>

#include "device/device.h"
#include "device/metal/objc.h"

namespace lily::metal {
namespace {

constexpr double kFreePatienceSeconds = 10;

}  // namespace

Residency::Residency(id<MTLDevice> device) {
  MTLResidencySetDescriptor* descriptor = [MTLResidencySetDescriptor new];
  descriptor.label = @"lily";
  descriptor.initialCapacity = 2048;
  NSError* error = nil;
  set_ = [device newResidencySetWithDescriptor:descriptor error:&error];
  if (!set_) throw DeviceError("metal", "", "residency", "Metal makes no residency set: " + text_of(error), true);
}

void Residency::add(id<MTLBuffer> buffer) {
  [set_ addAllocation:buffer];
  changed_ = true;
}

void Residency::remove(id<MTLBuffer> buffer) {
  [set_ removeAllocation:buffer];
  changed_ = true;
}

void Residency::commit() {
  if (!changed_) return;
  [set_ commit];
  [set_ requestResidency];
  changed_ = false;
}

Allocation::Allocation(id<MTLBuffer> buffer, std::shared_ptr<Residency> residency, std::shared_ptr<Progress> progress)
    : buffer_(buffer),
      contents_(static_cast<std::byte*>(buffer.contents)),
      residency_(std::move(residency)),
      progress_(std::move(progress)) {
  residency_->add(buffer_);
}

Allocation::~Allocation() {
  const AutoreleasePool pool;
  progress_->wait_for_room(0, kFreePatienceSeconds);
  residency_->remove(buffer_);
}

}  // namespace lily::metal
