// Buffers, residency sets and events.
#include <chrono>

#include "double.h"
#include "memory.h"
#include "submissions.h"

using softmetal::report;

NSErrorDomain const MTLCommandBufferErrorDomain = @"MTLCommandBufferErrorDomain";

namespace softmetal {

NSError* make_error(NSErrorDomain domain, NSInteger code, const std::string& message) {
  return [NSError errorWithDomain:domain code:code userInfo:@{NSLocalizedDescriptionKey : ns(message)}];
}

id refuse(NSError** error, const std::string& message) {
  if (error) *error = make_error(@"SoftwareMetal", 1, message);
  return nil;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace softmetal

@implementation SoftBuffer {
  void* address_;
  NSUInteger length_;
  MTLResourceOptions options_;
  void (^deallocator_)(void*, NSUInteger);
  NSString* label_;
}
- (instancetype)initWithAddress:(void*)address
                         length:(NSUInteger)length
                        options:(MTLResourceOptions)options
                    deallocator:(void (^)(void*, NSUInteger))deallocator {
  if ((self = [super init])) {
    address_ = address;
    length_ = length;
    options_ = options;
    deallocator_ = deallocator;
    softmetal::add_allocation({reinterpret_cast<std::uintptr_t>(address), length,
                               (options & MTLResourceHazardTrackingModeUntracked) != 0, "buffer"});
  }
  return self;
}
- (void)dealloc {
  const auto begin = reinterpret_cast<std::uintptr_t>(address_);
  softmetal::remove_allocation(begin);
  softmetal::forget_memory(begin, length_);
  if (deallocator_) deallocator_(address_, length_);
}
- (NSString*)label {
  return label_;
}
- (void)setLabel:(NSString*)label {
  label_ = [label copy];
  softmetal::label_allocation(reinterpret_cast<std::uintptr_t>(address_), label ? label.UTF8String : "buffer");
}
- (NSUInteger)length {
  return length_;
}
- (NSUInteger)allocatedSize {
  return length_;
}
- (MTLResourceOptions)resourceOptions {
  return options_;
}
- (MTLStorageMode)storageMode {
  return options_ & MTLResourceStorageModePrivate ? MTLStorageModePrivate : MTLStorageModeShared;
}
- (id<MTLDevice>)device {
  return MTLCreateSystemDefaultDevice();
}
- (void*)contents {
  if (self.storageMode == MTLStorageModePrivate) {
    report("contents of a private buffer");
    return nullptr;
  }
  return address_;
}
- (MTLGPUAddress)gpuAddress {
  return reinterpret_cast<std::uintptr_t>(address_);
}
@end

@implementation MTLResidencySetDescriptor
@synthesize label, initialCapacity;
@end

// Holds its buffers until a commit after they were removed.
@implementation SoftResidencySet {
  std::mutex mutex_;
  std::map<std::uintptr_t, SoftBuffer*> pending_, committed_;
}
static std::uintptr_t begin_of(id<MTLAllocation> allocation) {
  return static_cast<std::uintptr_t>(static_cast<SoftBuffer*>(allocation).gpuAddress);
}
- (void)addAllocation:(id<MTLAllocation>)allocation {
  const std::lock_guard lock(mutex_);
  pending_[begin_of(allocation)] = static_cast<SoftBuffer*>(allocation);
}
- (void)removeAllocation:(id<MTLAllocation>)allocation {
  const std::lock_guard lock(mutex_);
  if (!pending_.erase(begin_of(allocation))) report("a buffer was removed from a residency set that it is not in");
}
- (void)commit {
  std::map<std::uintptr_t, SoftBuffer*> dropped;  // buffers go when the lock is free again
  const std::lock_guard lock(mutex_);
  dropped = std::move(committed_);
  committed_ = pending_;
}
- (BOOL)isCommitted:(std::uintptr_t)begin {
  const std::lock_guard lock(mutex_);
  return committed_.count(begin) != 0;
}
- (uint64_t)allocatedSize {
  const std::lock_guard lock(mutex_);
  uint64_t size = 0;
  for (const auto& [begin, buffer] : committed_) size += buffer.allocatedSize;
  return size;
}
- (NSUInteger)allocationCount {
  const std::lock_guard lock(mutex_);
  return pending_.size();
}
- (void)requestResidency {
}
- (void)endResidency {
}
@end

@implementation SoftEvent {
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t value_;
}
@synthesize label;
- (void)signal:(uint64_t)value {
  const std::lock_guard lock(mutex_);
  value_ = value;
  changed_.notify_all();
}
- (BOOL)await:(uint64_t)value {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(10), [&] { return value_ >= value; });
}
- (uint64_t)signaledValue {
  uint64_t value;
  {
    const std::lock_guard lock(mutex_);
    value = value_;
  }
  softmetal::ordered_after((__bridge void*)self, value);
  return value;
}
- (void)setSignaledValue:(uint64_t)value {
  [self signal:value];
}
- (BOOL)waitUntilSignaledValue:(uint64_t)value timeoutMS:(uint64_t)milliseconds {
  {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return value_ >= value; })) return NO;
  }
  softmetal::ordered_after((__bridge void*)self, value);
  return YES;
}
@end
