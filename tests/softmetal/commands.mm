// Encoders of both generations, and Metal 3's command buffers and queues.
#include <chrono>
#include <thread>
#include <utility>

#include "double.h"
#include "memory.h"
#include "submissions.h"

using softmetal::report;

namespace softmetal {

Execution execute(const Stream& stream, const std::vector<SoftResidencySet*>& sets, bool is_implicitly_resident) {
  Execution execution;
  while (settings().stalls) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  execution.start = seconds_now();
  const Stream::Result result = stream.run([&](std::uintptr_t begin) {
    bool is_resident = is_implicitly_resident;
    for (SoftResidencySet* set : sets) is_resident = is_resident || [set isCommitted:begin];
    return is_resident;
  });
  execution.end = seconds_now();
  if (!result.error.empty()) {
    const NSInteger code = result.is_page_fault ? MTLCommandBufferErrorPageFault : MTLCommandBufferErrorInvalidResource;
    execution.error = make_error(MTLCommandBufferErrorDomain, code, result.error);
  }
  return execution;
}

std::optional<long> take_ordered_failure() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  Settings now = settings();
  if (now.fail_code == 0) return std::nullopt;
  if (now.fail_after == 0) return now.fail_code;
  --now.fail_after;
  configure(now);
  return std::nullopt;
}

}  // namespace softmetal

@implementation SoftEncoder {
  softmetal::Stream stream_;
  softmetal::RecordedDispatch next_;
  SoftArgumentTable* table_;
  BOOL ended_;
}
@synthesize label;
- (instancetype)initConcurrent:(BOOL)concurrent {
  if ((self = [super init])) stream_.is_concurrent = concurrent;
  return self;
}
- (softmetal::Stream*)stream {
  return &stream_;
}
- (BOOL)isOpen {
  return !ended_;
}
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
  next_.pipeline = static_cast<SoftPipeline*>(state).pipeline;
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  if (index >= softmetal::kMaxBindings) return report("buffer index " + std::to_string(index) + " is past 30");
  if (buffer && offset >= buffer.length) {
    report("offset " + std::to_string(offset) + " is past the end of '" + (buffer.label ? buffer.label.UTF8String : "buffer") +
           "' (" + std::to_string(buffer.length) + " bytes)");
  }
  next_.bindings[index] = buffer ? buffer.gpuAddress + offset : 0;
}
- (void)setBuffers:(const id<MTLBuffer> __unsafe_unretained[])buffers
           offsets:(const NSUInteger[])offsets
         withRange:(NSRange)range {
  for (NSUInteger i = 0; i < range.length; ++i) [self setBuffer:buffers[i] offset:offsets[i] atIndex:range.location + i];
}
- (void)setArgumentTable:(id<MTL4ArgumentTable>)table {
  table_ = static_cast<SoftArgumentTable*>(table);
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
  if (ended_) return report("dispatch after endEncoding");
  if (!next_.pipeline.kernel) return report("dispatch without a pipeline");
  const std::string name = next_.name();
  const NSUInteger count = threads.width * threads.height * threads.depth;
  if (groups.width * groups.height * groups.depth == 0) return report(name + ": the grid is empty");
  if (count == 0 || count > 1024 || count % 32 != 0)
    return report(name + ": " + std::to_string(count) + " threads per threadgroup: not a multiple of 32 up to 1024");
  softmetal::RecordedDispatch dispatch = next_;
  if (table_) dispatch.bindings = table_.bindings;
  dispatch.groups = {unsigned(groups.width), unsigned(groups.height), unsigned(groups.depth)};
  dispatch.threads = {unsigned(threads.width), unsigned(threads.height), unsigned(threads.depth)};
  stream_.append(std::move(dispatch));
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
  if (ended_) return report("barrier after endEncoding");
  if (scope & MTLBarrierScopeBuffers) stream_.barrier();
}
- (void)barrierAfterEncoderStages:(MTLStages)after
              beforeEncoderStages:(MTLStages)before
                visibilityOptions:(MTL4VisibilityOptions)options {
  if (ended_) return report("barrier after endEncoding");
  if ((after & MTLStageDispatch) && (before & MTLStageDispatch) && (options & MTL4VisibilityOptionDevice)) stream_.barrier();
}
- (void)barrierAfterQueueStages:(MTLStages)after
                   beforeStages:(MTLStages)before
              visibilityOptions:(MTL4VisibilityOptions)options {
  if (ended_) return report("barrier after endEncoding");
  if (!(after & MTLStageDispatch) || !(before & MTLStageDispatch) || !(options & MTL4VisibilityOptionDevice)) return;
  if (stream_.is_empty()) stream_.waits_for_queue = true;
  stream_.barrier();
}
- (void)endEncoding {
  if (ended_) report("endEncoding twice");
  ended_ = YES;
}
@end

// Recorded as: waits, one encoder, signals.
@interface SoftCommandBuffer : NSObject <MTLCommandBuffer>
- (instancetype)initWithWorker:(std::shared_ptr<softmetal::Worker>)worker sets:(std::vector<SoftResidencySet*>)sets;
@end

@implementation SoftCommandBuffer {
  std::shared_ptr<softmetal::Worker> worker_;
  std::vector<SoftResidencySet*> sets_;
  SoftEncoder* encoder_;
  std::vector<std::pair<SoftEvent*, uint64_t>> waits_, signals_;
  std::vector<MTLCommandBufferHandler> handlers_;
  std::atomic<NSUInteger> status_;
  softmetal::Execution execution_;
}
@synthesize label;
- (instancetype)initWithWorker:(std::shared_ptr<softmetal::Worker>)worker sets:(std::vector<SoftResidencySet*>)sets {
  if ((self = [super init])) {
    worker_ = std::move(worker);
    sets_ = std::move(sets);
  }
  return self;
}
- (MTLCommandBufferStatus)status {
  return MTLCommandBufferStatus(status_.load());
}
- (NSError*)error {
  return execution_.error;
}
- (CFTimeInterval)GPUStartTime {
  return execution_.start;
}
- (CFTimeInterval)GPUEndTime {
  return execution_.end;
}
- (BOOL)isRecording {
  if (status_ != MTLCommandBufferStatusNotEnqueued) {
    report("a committed command buffer was changed");
    return NO;
  }
  return YES;
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
  if (![self isRecording]) return nil;
  if (encoder_) {
    report(encoder_.isOpen ? "a new encoder while the last one is open" : "a second encoder in a command buffer is not modelled");
    return nil;
  }
  encoder_ = [[SoftEncoder alloc] initConcurrent:type == MTLDispatchTypeConcurrent];
  return encoder_;
}
- (void)encodeWaitForEvent:(id<MTLEvent>)event value:(uint64_t)value {
  if (![self isRecording]) return;
  if (encoder_) report("a wait behind the work does not order it");
  waits_.emplace_back(static_cast<SoftEvent*>(event), value);
}
- (void)encodeSignalEvent:(id<MTLEvent>)event value:(uint64_t)value {
  if (![self isRecording]) return;
  if (encoder_ && encoder_.isOpen) report("a signal while an encoder is open");
  signals_.emplace_back(static_cast<SoftEvent*>(event), value);
}
- (void)addCompletedHandler:(MTLCommandBufferHandler)handler {
  if ([self isRecording]) handlers_.push_back([handler copy]);
}
- (void)commit {
  if (![self isRecording]) return;
  if (encoder_ && encoder_.isOpen) report("commit with an open encoder");
  status_ = MTLCommandBufferStatusCommitted;
  const void* queue = worker_.get();
  for (const auto& [event, value] : waits_) softmetal::ordered_after((__bridge void*)event, value);
  if (encoder_) {
    std::map<std::uintptr_t, bool> untracked;  // Metal orders the others
    for (const auto& [address, writes] : encoder_.stream->uses()) {
      const auto allocation = softmetal::find_allocation(address);
      if (allocation && allocation->is_untracked) untracked[address] = writes;
    }
    softmetal::submitted(queue, std::move(untracked));
  }
  for (const auto& [event, value] : signals_) softmetal::signals(queue, (__bridge void*)event, value);
  const auto failure = softmetal::take_ordered_failure();
  worker_->give([self, failure] { [self executeUnless:failure]; });
}
- (void)executeUnless:(std::optional<long>)failure {
  bool came = true;
  for (const auto& [event, value] : waits_) came = [event await:value] && came;
  if (failure) {
    execution_.error = softmetal::make_error(MTLCommandBufferErrorDomain, *failure, "ordered by the test");
  } else if (!came) {
    report("a command buffer waits for an event that is never signalled");
    execution_.error = softmetal::make_error(MTLCommandBufferErrorDomain, MTLCommandBufferErrorTimeout, "event never signalled");
  } else if (encoder_) {
    execution_ = softmetal::execute(*encoder_.stream, sets_, true);
  }
  status_ = execution_.error ? MTLCommandBufferStatusError : MTLCommandBufferStatusCompleted;
  if (!execution_.error)  // a command buffer that failed signals nothing
    for (const auto& [event, value] : signals_) [event signal:value];
  for (MTLCommandBufferHandler handler : handlers_) handler(self);
  handlers_.clear();  // they may hold this object
}
@end

@implementation SoftCommandQueue {
  std::shared_ptr<softmetal::Worker> worker_;
  std::vector<SoftResidencySet*> sets_;
}
@synthesize label;
- (instancetype)init {
  if ((self = [super init])) worker_ = std::make_shared<softmetal::Worker>();
  return self;
}
- (void)dealloc {
  softmetal::ordered_after_queue(worker_.get());
}
- (id<MTLDevice>)device {
  return MTLCreateSystemDefaultDevice();
}
- (id<MTLCommandBuffer>)commandBufferWithUnretainedReferences {
  return [[SoftCommandBuffer alloc] initWithWorker:worker_ sets:sets_];
}
- (void)addResidencySet:(id<MTLResidencySet>)set {
  sets_.push_back(static_cast<SoftResidencySet*>(set));
}
@end
