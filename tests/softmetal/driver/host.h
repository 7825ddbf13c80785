// A little host of Metal for the scenarios, on Metal 3 or Metal 4, and the scenarios by what they are about.
#pragma once

#import <Metal/Metal.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace driver {

inline NSString* const kSource = @R"(#include <metal_stdlib>
using namespace metal;
kernel void add(device float* y [[buffer(0)]], device const float* x [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i] += x[i];
}
kernel void twice(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] *= 2.0f; }
kernel void large(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float t[8200];
  t[i] = y[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = t[i ^ 1];
}
)";
constexpr NSUInteger kCount = 256;
constexpr MTLResourceOptions kUntracked = MTLResourceHazardTrackingModeUntracked;
inline const MTLSize kGroups = MTLSizeMake(kCount / 32, 1, 1), kThreads = MTLSizeMake(32, 1, 1);

struct Binding {
  id<MTLBuffer> buffer;
  NSUInteger offset = 0;
};

inline std::string text(NSError* error) { return error ? error.localizedDescription.UTF8String : ""; }

// Work is added to one command buffer, which `submit` commits and `finish` waits for.
class Host {
 public:
  explicit Host(bool metal4) : metal4_(metal4) {
    residency = [device newResidencySetWithDescriptor:[MTLResidencySetDescriptor new] error:nil];
    if (metal4) {
      queue4 = [device newMTL4CommandQueue];
      [queue4 addResidencySet:residency];
      allocator = [device newCommandAllocator];
    } else {
      queue3 = [device newCommandQueue];
    }
    NSError* error = nil;
    MTLCompileOptions* options = [MTLCompileOptions new];
    options.mathMode = MTLMathModeSafe;
    library = [device newLibraryWithSource:kSource options:options error:&error];
    message = text(error);
  }

  Binding buffer(float value, MTLResourceOptions options = kUntracked) {
    id<MTLBuffer> made = [device newBufferWithLength:kCount * 4 options:options];
    made.label = @"floats";
    @autoreleasepool {  // `contents` autoreleases the buffer
      auto* floats = static_cast<float*>(made.contents);
      for (NSUInteger i = 0; i < kCount; ++i) floats[i] = value;
    }
    keep(made);
    return {made};
  }
  void keep(id<MTLBuffer> made) {
    [residency addAllocation:made];
    [residency commit];
  }

  id<MTLComputePipelineState> pipeline(NSString* name, NSError** error = nil) {
    MTLComputePipelineDescriptor* descriptor = [MTLComputePipelineDescriptor new];
    descriptor.computeFunction = [library newFunctionWithName:name];
    return [device newComputePipelineStateWithDescriptor:descriptor options:MTLPipelineOptionNone reflection:nil error:error];
  }

  void open() {
    if (metal4_) {
      buffer4 = [device newCommandBuffer];
      [buffer4 beginCommandBufferWithAllocator:allocator];
      encoder4 = [buffer4 computeCommandEncoder];
    } else {
      buffer3 = [queue3 commandBufferWithUnretainedReferences];
      encoder3 = [buffer3 computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
    }
  }
  void bind(std::vector<Binding> bindings) {
    if (metal4_) {
      MTL4ArgumentTableDescriptor* descriptor = [MTL4ArgumentTableDescriptor new];
      descriptor.maxBufferBindCount = 4;
      id<MTL4ArgumentTable> table = [device newArgumentTableWithDescriptor:descriptor error:nil];
      for (NSUInteger i = 0; i < bindings.size(); ++i)
        [table setAddress:bindings[i].buffer.gpuAddress + bindings[i].offset atIndex:i];
      [encoder4 setArgumentTable:table];
    } else {
      for (NSUInteger i = 0; i < bindings.size(); ++i)
        [encoder3 setBuffer:bindings[i].buffer offset:bindings[i].offset atIndex:i];
    }
  }
  void dispatch(NSString* name, std::vector<Binding> bindings, MTLSize groups = kGroups, MTLSize threads = kThreads) {
    id<MTLComputePipelineState> state = pipeline(name);
    if (metal4_) [encoder4 setComputePipelineState:state];
    else [encoder3 setComputePipelineState:state];
    bind(bindings);
    if (metal4_) [encoder4 dispatchThreadgroups:groups threadsPerThreadgroup:threads];
    else [encoder3 dispatchThreadgroups:groups threadsPerThreadgroup:threads];
  }
  void barrier() {
    if (metal4_)
      [encoder4 barrierAfterEncoderStages:MTLStageDispatch
                      beforeEncoderStages:MTLStageDispatch
                        visibilityOptions:MTL4VisibilityOptionDevice];
    else [encoder3 memoryBarrierWithScope:MTLBarrierScopeBuffers];
  }
  void close() {
    if (metal4_) [encoder4 endEncoding];
    else [encoder3 endEncoding];
  }
  void end() {
    close();
    if (metal4_) [buffer4 endCommandBuffer];
  }
  // The error's text of the command buffer goes to `message` when it is done.
  void submit() {
    const std::shared_ptr<std::string> out = said;
    if (metal4_) {
      MTL4CommitOptions* options = [MTL4CommitOptions new];
      [options addFeedbackHandler:^(id<MTL4CommitFeedback> feedback) {
        *out = text(feedback.error);
      }];
      const id<MTL4CommandBuffer> list[] = {buffer4};
      [queue4 commit:list count:1 options:options];
      [queue4 signalEvent:event value:++value];
    } else {
      id<MTLSharedEvent> signalled = event;
      const uint64_t ticket = ++value;
      [buffer3 encodeSignalEvent:event value:ticket];
      [buffer3 addCompletedHandler:^(id<MTLCommandBuffer> done) {
        *out = text(done.error);
        if (done.status == MTLCommandBufferStatusError) signalled.signaledValue = ticket;
      }];
      [buffer3 commit];
    }
  }
  bool wait(uint64_t milliseconds = 20000) {
    const bool came = [event waitUntilSignaledValue:value timeoutMS:milliseconds];
    if (came && !metal4_)  // the handler of the last command buffer runs after its signal
      while (buffer3.status < MTLCommandBufferStatusCompleted) {
      }
    return came;
  }
  void finish() {
    end();
    submit();
    wait();
  }

  bool metal4() const { return metal4_; }
  id<MTLDevice> device = MTLCreateSystemDefaultDevice();
  id<MTLResidencySet> residency;
  id<MTLSharedEvent> event = [device newSharedEvent];
  uint64_t value = 0;
  id<MTLLibrary> library;
  id<MTLCommandQueue> queue3;
  id<MTLCommandBuffer> buffer3;
  id<MTLComputeCommandEncoder> encoder3;
  id<MTL4CommandQueue> queue4;
  id<MTL4CommandAllocator> allocator;
  id<MTL4CommandBuffer> buffer4;
  id<MTL4ComputeCommandEncoder> encoder4;
  const std::shared_ptr<std::string> said = std::make_shared<std::string>();  // a stalled command buffer outlives its host
  std::string& message = *said;

 private:
  bool metal4_;
};

inline std::string value_of(const Binding& binding, NSUInteger index = 0) {
  char out[32];
  std::snprintf(out, sizeof out, "%g", static_cast<double>(static_cast<float*>(binding.buffer.contents)[index]));
  return out;
}

// Does one thing, right or wrong, and says what came of it.
using Scenarios = std::map<std::string, std::function<std::string(Host&)>>;

const Scenarios& order_scenarios();
const Scenarios& memory_scenarios();
const Scenarios& commands_scenarios();
const Scenarios& libraries_scenarios();

}  // namespace driver
