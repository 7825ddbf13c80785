// Small hosts, right and wrong, for the tests of software Metal: each does one thing with the double, on Metal 3 and Metal 4.
#import <Metal/Metal.h>

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <string>

#include <vector>

#include "tests/softmetal/objc_runtime.h"

namespace {

NSString* const kSource = @R"(#include <metal_stdlib>
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
const MTLSize kGroups = MTLSizeMake(kCount / 32, 1, 1), kThreads = MTLSizeMake(32, 1, 1);

struct Binding {
  id<MTLBuffer> buffer;
  NSUInteger offset = 0;
};

std::string text(NSError* error) { return error ? error.localizedDescription.UTF8String : ""; }

// A little host. Work is added to one command buffer, which `submit` commits and `finish` waits for.
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
    __block std::string* out = &message;
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
  std::string message;

 private:
  bool metal4_;
};

std::string value_of(const Binding& binding, NSUInteger index = 0) {
  char out[32];
  std::snprintf(out, sizeof out, "%g", static_cast<double>(static_cast<float*>(binding.buffer.contents)[index]));
  return out;
}

// Two dispatches that depend on each other: (1 + 3) * 2 or 1 * 2 + 3.
std::string chain(Host& host, const std::function<void()>& between) {
  const Binding y = host.buffer(1), x = host.buffer(3);
  host.open();
  host.dispatch(@"add", {y, x});
  between();
  host.dispatch(@"twice", {y});
  host.finish();
  return value_of(y);
}

using Scenario = std::function<std::string(Host&)>;

const std::map<std::string, Scenario>& scenarios() {
  static const std::map<std::string, Scenario> all = {
      {"barrier", [](Host& host) { return chain(host, [&] { host.barrier(); }); }},
      {"no barrier", [](Host& host) { return chain(host, [] {}); }},
      {"readers without a barrier",
       [](Host& host) {
         const Binding a = host.buffer(1), b = host.buffer(2), x = host.buffer(3);
         host.open();
         host.dispatch(@"add", {a, x});
         host.dispatch(@"add", {b, x});
         host.finish();
         return value_of(a) + " " + value_of(b);
       }},
      {"parts of one buffer without a barrier",
       [](Host& host) {
         const Binding a = host.buffer(1);
         host.open();
         host.dispatch(@"twice", {a}, MTLSizeMake(1, 1, 1));
         host.dispatch(@"twice", {{a.buffer, 128}}, MTLSizeMake(1, 1, 1));
         host.finish();
         return value_of(a) + " " + value_of(a, 32) + " " + value_of(a, 64);
       }},
      {"submission not waited for",
       [](Host& host) {
         return chain(host, [&] {
           host.end();
           host.submit();
           host.open();
         });
       }},
      {"submission waited for",
       [](Host& host) {
         return chain(host, [&] {
           host.finish();
           host.open();
         });
       }},
      {"submission ordered on the GPU",
       [](Host& host) {
         return chain(host, [&] {
           host.end();
           host.submit();
           if (host.metal4()) {
             [host.queue4 waitForEvent:host.event value:host.value];
             host.allocator = [host.device newCommandAllocator];
             host.open();
           } else {
             host.buffer3 = [host.queue3 commandBufferWithUnretainedReferences];
             [host.buffer3 encodeWaitForEvent:host.event value:host.value];
             host.encoder3 = [host.buffer3 computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
           }
         });
       }},
      {"wait behind the work",
       [](Host& host) {
         const Binding y = host.buffer(1);
         host.open();
         host.dispatch(@"twice", {y});
         if (!host.metal4()) [host.buffer3 encodeWaitForEvent:host.event value:0];
         host.finish();
         return value_of(y);
       }},
      {"queue barrier",
       [](Host& host) {
         return chain(host, [&] {
           host.end();
           host.submit();
           host.allocator = [host.device newCommandAllocator];
           host.open();
           if (host.metal4())
             [host.encoder4 barrierAfterQueueStages:MTLStageDispatch
                                       beforeStages:MTLStageDispatch
                                  visibilityOptions:MTL4VisibilityOptionDevice];
         });
       }},
      {"nothing bound",
       [](Host& host) {
         const Binding y = host.buffer(1);
         host.open();
         host.dispatch(@"add", {y});
         host.finish();
         return host.message;
       }},
      {"freed buffer",
       [](Host& host) {
         host.open();
         @autoreleasepool {
           const Binding y = host.buffer(1);
           host.dispatch(@"twice", {y});
           [host.residency removeAllocation:y.buffer];
           [host.residency commit];
         }
         host.finish();
         return host.message;
       }},
      {"buffer that is not resident",
       [](Host& host) {
         const Binding y = host.buffer(1);
         [host.residency removeAllocation:y.buffer];
         [host.residency commit];
         host.open();
         host.dispatch(@"twice", {y});
         host.finish();
         return host.message;
       }},
      {"residency without commit",
       [](Host& host) {
         const Binding y{[host.device newBufferWithLength:kCount * 4 options:kUntracked]};
         [host.residency addAllocation:y.buffer];
         host.open();
         host.dispatch(@"twice", {y});
         host.finish();
         return host.message;
       }},
      {"offset past the end",
       [](Host& host) {
         const Binding y = host.buffer(1);
         host.open();
         host.dispatch(@"twice", {{y.buffer, kCount * 4 + 64}});
         host.finish();
         return host.message;
       }},
      {"access past the end",
       [](Host& host) {
         const Binding y = host.buffer(1);
         host.open();
         host.dispatch(@"twice", {{y.buffer, 64}});
         host.finish();
         return host.message;
       }},
      {"new memory",
       [](Host& host) {
         const Binding y{[host.device newBufferWithLength:kCount * 4 options:kUntracked]};
         return value_of(y);
       }},
      {"large memory",
       [](Host& host) {
         constexpr NSUInteger kFloats = NSUInteger{3} << 30;  // 12 GiB, of which little is touched
         id<MTLBuffer> made = [host.device newBufferWithLength:kFloats * 4 options:kUntracked];
         auto* floats = static_cast<float*>(made.contents);
         floats[kFloats - 1] = 1;
         std::string out;
         for (NSUInteger i : {NSUInteger{0}, kFloats / 2, kFloats - 2, kFloats - 1})
           out += floats[i] != floats[i] ? "nan " : "number ";
         return out;
       }},
      {"encoder left open",
       [](Host& host) {
         host.open();
         if (host.metal4()) [host.buffer4 endCommandBuffer];
         host.submit();
         return std::string();
       }},
      {"encoder used after its end",
       [](Host& host) {
         const Binding y = host.buffer(1);
         host.open();
         host.end();
         host.dispatch(@"twice", {y});
         return value_of(y);
       }},
      {"endEncoding twice",
       [](Host& host) {
         host.open();
         host.close();
         host.close();
         return std::string();
       }},
      {"commit twice",
       [](Host& host) {
         host.open();
         host.end();
         host.submit();
         host.submit();
         host.wait();
         return std::string();
       }},
      {"allocator reset in use",
       [](Host& host) {
         if (!host.metal4()) return std::string("Metal 4 only");
         host.open();
         [host.allocator reset];
         host.finish();
         [host.allocator reset];
         return std::string();
       }},
      {"no copy",
       [](Host& host) {
         constexpr std::size_t kPages = 16384;
         void* memory = mmap(nullptr, kPages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
         static_cast<float*>(memory)[kCount - 1] = 4;
         bool released = false;
         bool* out = &released;
         @autoreleasepool {
           Binding y{[host.device newBufferWithBytesNoCopy:memory
                                                    length:kPages
                                                   options:kUntracked
                                               deallocator:^(void*, NSUInteger) {
                                                 *out = true;
                                               }]};
           host.keep(y.buffer);
           host.open();
           host.dispatch(@"twice", {y});
           host.finish();
           [host.residency removeAllocation:y.buffer];
           [host.residency commit];
           host.buffer3 = nil;
           host.encoder3 = nil;
           host.buffer4 = nil;
           host.encoder4 = nil;
         }
         return std::to_string(static_cast<float*>(memory)[kCount - 1]) + (released ? " released" : " held");
       }},
      {"no copy off a page",
       [](Host& host) {
         static char memory[65536];
         id<MTLBuffer> made = [host.device newBufferWithBytesNoCopy:memory + 16 length:16384 options:0 deallocator:nil];
         return std::string(made ? "made" : "refused");
       }},
      {"private contents",
       [](Host& host) {
         id<MTLBuffer> made = [host.device newBufferWithLength:64 options:MTLResourceStorageModePrivate];
         return std::string(made.contents ? "address" : "none");
       }},
      {"long buffer",
       [](Host& host) {
         id<MTLBuffer> made = [host.device newBufferWithLength:host.device.maxBufferLength + 1 options:0];
         return std::string(made ? "made" : "refused");
       }},
      {"empty grid",
       [](Host& host) {
         host.open();
         host.dispatch(@"twice", {host.buffer(1)}, MTLSizeMake(0, 1, 1));
         host.finish();
         return std::string();
       }},
      {"ragged threadgroup",
       [](Host& host) {
         host.open();
         host.dispatch(@"twice", {host.buffer(1)}, kGroups, MTLSizeMake(33, 1, 1));
         host.finish();
         return std::string();
       }},
      {"too much threadgroup memory",
       [](Host& host) {
         NSError* error = nil;
         id<MTLComputePipelineState> state = host.pipeline(@"large", &error);
         return state ? std::string("made") : text(error);
       }},
      {"unknown function",
       [](Host& host) {
         NSError* error = nil;
         id<MTLComputePipelineState> state = host.pipeline(@"nosuch", &error);
         return state ? std::string("made") : text(error);
       }},
      {"source that does not compile",
       [](Host& host) {
         NSError* error = nil;
         id<MTLLibrary> made = [host.device newLibraryWithSource:@"kernel void f() {\n  return 1;\n}\n" options:nil error:&error];
         return made ? std::string("made") : text(error);
       }},
      {"macros",
       [](Host& host) {
         MTLCompileOptions* options = [MTLCompileOptions new];
         options.mathMode = MTLMathModeSafe;
         options.preprocessorMacros = @{@"VALUE" : @5};
         NSString* source = @"#include <metal_stdlib>\nusing namespace metal;\n"
                             "kernel void twice(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {\n"
                             "  y[i] = VALUE;\n}\n";
         host.library = [host.device newLibraryWithSource:source options:options error:nil];
         const Binding y = host.buffer(1);
         host.open();
         host.dispatch(@"twice", {y});
         host.finish();
         return value_of(y) + " " + host.library.functionNames[0].UTF8String;
       }},
      {"failure",
       [](Host& host) {
         const Binding y = host.buffer(1);
         host.open();
         host.dispatch(@"twice", {y});
         host.finish();
         return host.message + ", " + value_of(y);
       }},
      {"stall",
       [](Host& host) {
         const Binding y = host.buffer(1);
         host.open();
         host.dispatch(@"twice", {y});
         host.end();
         host.submit();
         return std::string(host.wait(20) ? "done" : "waiting");
       }},
      {"archive",
       [](Host& host) {
         NSError* error = nil;
         char path[] = "/tmp/softmetal.XXXXXX";
         close(mkstemp(path));
         MTLBinaryArchiveDescriptor* of = [MTLBinaryArchiveDescriptor new];
         id<MTLBinaryArchive> archive = [host.device newBinaryArchiveWithDescriptor:of error:&error];
         MTLComputePipelineDescriptor* descriptor = [MTLComputePipelineDescriptor new];
         descriptor.computeFunction = [host.library newFunctionWithName:@"add"];
         std::string out = [archive addComputePipelineFunctionsWithDescriptor:descriptor error:&error] ? "added" : text(error);
         NSURL* url = [NSURL fileURLWithPath:[NSString stringWithUTF8String:path]];
         out += [archive serializeToURL:url error:&error] ? " saved" : text(error);
         of.url = url;
         archive = [host.device newBinaryArchiveWithDescriptor:of error:&error];
         descriptor.binaryArchives = @[ archive ];
         for (NSString* name : {@"add", @"twice"}) {
           descriptor.computeFunction = [host.library newFunctionWithName:name];
           const bool hit = [host.device newComputePipelineStateWithDescriptor:descriptor
                                                                       options:MTLPipelineOptionFailOnBinaryArchiveMiss
                                                                    reflection:nil
                                                                         error:&error];
           out += hit ? " hit" : " miss";
         }
         unlink(path);
         return out;
       }},
  };
  return all;
}

}  // namespace

extern "C" {

// What the scenario says of itself; valid until the next call.
__attribute__((visibility("default"))) const char* run_scenario(const char* name, int metal4) {
  static std::string result;
  void* pool = objc_autoreleasePoolPush();
  {
    Host host(metal4 != 0);
    result = host.message.empty() ? scenarios().at(name)(host) : host.message;
  }
  objc_autoreleasePoolPop(pool);
  return result.c_str();
}
}
