// The device.
#include <unistd.h>

#include <algorithm>

#include "double.h"
#include "memory.h"

using softmetal::report;

namespace softmetal {
id<MTLLibrary> make_library(NSString* source, MTLCompileOptions* options, NSError** error);
id<MTLComputePipelineState> make_pipeline(MTLComputePipelineDescriptor* descriptor, MTLPipelineOption option,
                                          NSError** error);
}  // namespace softmetal

namespace {

constexpr NSUInteger kPageBytes = 16384;  // on Apple silicon

bool is_too_long(NSUInteger length) {
  const auto limit = softmetal::settings().max_buffer_length;
  if (length <= limit) return false;
  report("a buffer of " + std::to_string(length) + " bytes, maxBufferLength is " + std::to_string(limit));
  return true;
}

}  // namespace

@interface SoftDevice : NSObject <MTLDevice>
@end

@implementation SoftDevice
- (NSString*)name {
  return @"Software Metal (a double for tests)";
}
- (BOOL)hasUnifiedMemory {
  return YES;
}
- (uint64_t)recommendedMaxWorkingSetSize {
  return softmetal::settings().working_set_size;
}
- (NSUInteger)maxBufferLength {
  return softmetal::settings().max_buffer_length;
}
- (BOOL)supportsFamily:(MTLGPUFamily)family {
  if (family == MTLGPUFamilyMetal4) return softmetal::settings().has_metal4;
  return family == MTLGPUFamilyApple7 || family == MTLGPUFamilyMetal3;
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  if (length == 0) {
    report("a buffer of 0 bytes");
    return nil;
  }
  if (is_too_long(length)) return nil;
  void* memory = softmetal::allocate_guarded(length);
  if (!memory) return nil;
  return [[SoftBuffer alloc] initWithAddress:memory
                                      length:length
                                     options:options
                                 deallocator:^(void* address, NSUInteger bytes) {
                                   softmetal::free_guarded(address, bytes);
                                 }];
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void*)address
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void*, NSUInteger))deallocator {
  // This machine's pages may be smaller than a Mac's: what mmap returned need not be aligned to 16 KB.
  const auto page = std::min<NSUInteger>(kPageBytes, NSUInteger(sysconf(_SC_PAGESIZE)));
  if (reinterpret_cast<std::uintptr_t>(address) % page != 0 || length % page != 0 || length == 0) {
    report("a buffer without a copy must be whole pages");
    return nil;
  }
  if (is_too_long(length)) return nil;
  return [[SoftBuffer alloc] initWithAddress:address length:length options:options deallocator:deallocator];
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source options:(MTLCompileOptions*)options error:(NSError**)error {
  return softmetal::make_library(source, options, error);
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                                             options:(MTLPipelineOption)options
                                                          reflection:(MTLComputePipelineReflection**)reflection
                                                               error:(NSError**)error {
  (void)reflection;
  return softmetal::make_pipeline(descriptor, options, error);
}
- (id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor*)descriptor error:(NSError**)error {
  SoftBinaryArchive* archive = [SoftBinaryArchive new];
  if (descriptor.url && ![archive load:descriptor.url.path error:error]) return nil;
  return archive;
}
- (id<MTLCommandQueue>)newCommandQueue {
  return [SoftCommandQueue new];
}
- (id<MTLSharedEvent>)newSharedEvent {
  return [SoftEvent new];
}
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor*)descriptor error:(NSError**)error {
  (void)descriptor;
  (void)error;
  return [SoftResidencySet new];
}
- (id<MTL4CommandQueue>)newMTL4CommandQueue {
  return softmetal::settings().has_metal4 ? [SoftCommandQueue4 new] : nil;
}
- (id<MTL4CommandAllocator>)newCommandAllocator {
  return [SoftAllocator new];
}
- (id<MTL4CommandBuffer>)newCommandBuffer {
  return [SoftCommandBuffer4 new];
}
- (id<MTL4ArgumentTable>)newArgumentTableWithDescriptor:(MTL4ArgumentTableDescriptor*)descriptor
                                                  error:(NSError**)error {
  if (descriptor.maxBufferBindCount == 0 || descriptor.maxBufferBindCount > softmetal::kMaxBindings)
    return softmetal::refuse(error, "an argument table has 1 to 31 buffers");
  return [[SoftArgumentTable alloc] initWithCount:descriptor.maxBufferBindCount];
}
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void) {
  static SoftDevice* const device = [SoftDevice new];
  return device;
}
