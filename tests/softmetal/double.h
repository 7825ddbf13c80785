// The classes behind the protocols that tools/metal_stub declares. Compiled with ARC.
#pragma once

#import <Metal/Metal.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "stream.h"
#include "worker.h"

#if !__has_feature(objc_arc)
#error "compile with -fobjc-arc"
#endif
// The protocols have properties of the real thing that nobody here asks for.
#pragma clang diagnostic ignored "-Wprotocol"
#pragma clang diagnostic ignored "-Wobjc-protocol-property-synthesis"
#pragma clang diagnostic ignored "-Wobjc-property-synthesis"
#pragma clang diagnostic ignored "-Wincomplete-implementation"
#pragma clang diagnostic ignored "-Wnullability"
#pragma clang diagnostic ignored "-Wnullability-completeness"
#pragma clang diagnostic ignored "-Wproperty-attribute-mismatch"

namespace softmetal {

inline NSString* ns(const std::string& text) { return [NSString stringWithUTF8String:text.c_str()]; }
NSError* make_error(NSErrorDomain domain, NSInteger code, const std::string& message);
// Sets *error, if it is asked for, and returns nil.
id refuse(NSError** error, const std::string& message);
double seconds_now();


}  // namespace softmetal

// ---- Resources

@interface SoftBuffer : NSObject <MTLBuffer>
- (instancetype)initWithAddress:(void*)address
                         length:(NSUInteger)length
                        options:(MTLResourceOptions)options
                    deallocator:(void (^)(void*, NSUInteger))deallocator;
@end

@interface SoftResidencySet : NSObject <MTLResidencySet>
- (BOOL)isCommitted:(std::uintptr_t)begin;
@end

@interface SoftEvent : NSObject <MTLSharedEvent>
- (void)signal:(uint64_t)value;   // by a queue
- (BOOL)await:(uint64_t)value;    // by a queue; NO: nothing came
@end

// ---- From source to pipeline

@interface SoftLibrary : NSObject <MTLLibrary>
- (instancetype)initWithShader:(std::shared_ptr<softmetal::ShaderLibrary>)shader digest:(std::size_t)digest;
@end

@interface SoftFunction : NSObject <MTLFunction>
@property(copy) NSString* name;
@property(nonatomic) softmetal::Pipeline pipeline;
@property(nonatomic) std::size_t digest;  // of the source
@end

@interface SoftBinaryArchive : NSObject <MTLBinaryArchive>
- (BOOL)load:(NSString*)path error:(NSError**)error;
- (BOOL)contains:(SoftFunction*)function;
@end

@interface SoftPipeline : NSObject <MTLComputePipelineState>
- (instancetype)initWithPipeline:(softmetal::Pipeline)pipeline;
@property(nonatomic, readonly) softmetal::Pipeline pipeline;
@end

// ---- Commands

// Both generations of encoders.
@interface SoftEncoder : NSObject <MTLComputeCommandEncoder, MTL4ComputeCommandEncoder>
@property(nonatomic, readonly) softmetal::Stream* stream;
@property(nonatomic, readonly) BOOL isOpen;
- (instancetype)initConcurrent:(BOOL)concurrent;
@end

@interface SoftCommandQueue : NSObject <MTLCommandQueue>
@end

@interface SoftArgumentTable : NSObject <MTL4ArgumentTable>
- (instancetype)initWithCount:(NSUInteger)count;
@property(nonatomic, readonly) softmetal::Bindings bindings;
@end

@interface SoftAllocator : NSObject <MTL4CommandAllocator>
// Command buffers that were begun with it and are not finished.
@property(nonatomic, readonly) std::shared_ptr<std::atomic<int>> users;
@end

@interface SoftCommandBuffer4 : NSObject <MTL4CommandBuffer>
@end

@interface SoftCommandQueue4 : NSObject <MTL4CommandQueue>
@end

namespace softmetal {

// What both generations of queues do with a recorded stream, on the queue's thread. `implicit` residency is Metal 3's: what an
// encoder binds is resident.
struct Execution {
  NSError* error = nil;
  double start = 0, end = 0;
};
Execution execute(const Stream& stream, const std::vector<SoftResidencySet*>& sets, bool is_implicitly_resident);
// The failure that a test ordered for the command buffer that is committed now.
std::optional<long> take_ordered_failure();

}  // namespace softmetal
