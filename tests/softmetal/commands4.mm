// Metal 4's argument tables, allocators, command buffers and queues.
#include <utility>

#include "double.h"
#include "submissions.h"

using softmetal::report;

@implementation MTL4ArgumentTableDescriptor
@synthesize maxBufferBindCount;
@end

@implementation SoftArgumentTable {
  softmetal::Bindings bindings_;
  NSUInteger count_;
}
- (instancetype)initWithCount:(NSUInteger)count {
  if ((self = [super init])) count_ = count;
  return self;
}
- (softmetal::Bindings)bindings {
  return bindings_;
}
- (void)setAddress:(MTLGPUAddress)address atIndex:(NSUInteger)index {
  if (index >= count_) return report("index " + std::to_string(index) + " of an argument table of " + std::to_string(count_));
  bindings_[index] = address;
}
@end

@implementation SoftAllocator {
  std::shared_ptr<std::atomic<int>> users_;
}
- (instancetype)init {
  if ((self = [super init])) users_ = std::make_shared<std::atomic<int>>(0);
  return self;
}
- (std::shared_ptr<std::atomic<int>>)users {
  return users_;
}
- (void)reset {
  if (*users_ != 0) report("a command allocator was reset while its commands are in use");
}
@end

namespace {
enum class Recording { kNo, kOpen, kEnded };
}

@implementation SoftCommandBuffer4 {
 @public
  SoftAllocator* allocator_;
  SoftEncoder* encoder_;
  Recording state_;
}
- (void)beginCommandBufferWithAllocator:(id<MTL4CommandAllocator>)allocator {
  if (state_ == Recording::kOpen) return report("beginCommandBuffer twice");
  if (state_ == Recording::kEnded) --*allocator_.users;  // recorded and never committed
  allocator_ = static_cast<SoftAllocator*>(allocator);
  ++*allocator_.users;
  encoder_ = nil;
  state_ = Recording::kOpen;
}
- (id<MTL4ComputeCommandEncoder>)computeCommandEncoder {
  if (state_ != Recording::kOpen) {
    report("an encoder before beginCommandBuffer");
    return nil;
  }
  if (encoder_) {
    report(encoder_.isOpen ? "a new encoder while the last one is open" : "a second encoder in a command buffer is not modelled");
    return nil;
  }
  encoder_ = [[SoftEncoder alloc] initConcurrent:YES];
  return encoder_;
}
- (void)endCommandBuffer {
  if (state_ != Recording::kOpen) return report("endCommandBuffer without beginCommandBuffer");
  if (encoder_ && encoder_.isOpen) report("endCommandBuffer with an open encoder");
  state_ = Recording::kEnded;
}
@end

@implementation MTL4CommitOptions {
  std::vector<MTL4CommitFeedbackHandler> handlers_;
}
- (void)addFeedbackHandler:(MTL4CommitFeedbackHandler)handler {
  handlers_.push_back([handler copy]);
}
- (const std::vector<MTL4CommitFeedbackHandler>&)handlers {
  return handlers_;
}
@end
@interface MTL4CommitOptions (Handlers)
- (const std::vector<MTL4CommitFeedbackHandler>&)handlers;
@end

@interface SoftFeedback : NSObject <MTL4CommitFeedback>
@property(nonatomic) softmetal::Execution execution;
@end
@implementation SoftFeedback
@synthesize execution;
- (NSError*)error {
  return self.execution.error;
}
- (CFTimeInterval)GPUStartTime {
  return self.execution.start;
}
- (CFTimeInterval)GPUEndTime {
  return self.execution.end;
}
@end

@implementation SoftCommandQueue4 {
  std::shared_ptr<softmetal::Worker> worker_;
  std::vector<SoftResidencySet*> sets_;
}
- (instancetype)init {
  if ((self = [super init])) worker_ = std::make_shared<softmetal::Worker>();
  return self;
}
- (void)dealloc {
  softmetal::ordered_after_queue(worker_.get());
}
- (void)addResidencySet:(id<MTLResidencySet>)set {
  sets_.push_back(static_cast<SoftResidencySet*>(set));
}
// Several command buffers of one commit form one piece of work.
- (void)commit:(const id<MTL4CommandBuffer> __unsafe_unretained[])buffers
         count:(NSUInteger)count
       options:(MTL4CommitOptions*)options {
  std::vector<SoftEncoder*> encoders;
  std::vector<std::shared_ptr<std::atomic<int>>> users;
  for (NSUInteger i = 0; i < count; ++i) {
    SoftCommandBuffer4* buffer = static_cast<SoftCommandBuffer4*>(buffers[i]);
    if (buffer->state_ != Recording::kEnded) {
      report("commit of a command buffer that is not ended, or twice");
      continue;
    }
    buffer->state_ = Recording::kNo;
    users.push_back(buffer->allocator_.users);
    if (!buffer->encoder_) continue;
    if (buffer->encoder_.stream->waits_for_queue) softmetal::ordered_after_queue(worker_.get());
    softmetal::submitted(worker_.get(), buffer->encoder_.stream->uses());
    encoders.push_back(buffer->encoder_);
  }
  const auto failure = softmetal::take_ordered_failure();
  const auto sets = sets_;
  worker_->give([=] {
    SoftFeedback* feedback = [SoftFeedback new];
    softmetal::Execution execution;
    if (failure) execution.error = softmetal::make_error(MTLCommandBufferErrorDomain, *failure, "ordered by the test");
    for (SoftEncoder* encoder : encoders) {
      if (execution.error) break;
      const double start = execution.start;
      execution = softmetal::execute(*encoder.stream, sets, false);
      if (start > 0) execution.start = start;
    }
    for (const auto& count : users) --*count;
    feedback.execution = execution;
    if (options)
      for (MTL4CommitFeedbackHandler handler : [options handlers]) handler(feedback);
  });
}
- (void)signalEvent:(id<MTLEvent>)event value:(uint64_t)value {
  softmetal::signals(worker_.get(), (__bridge void*)event, value);
  SoftEvent* target = static_cast<SoftEvent*>(event);
  worker_->give([=] { [target signal:value]; });
}
- (void)waitForEvent:(id<MTLEvent>)event value:(uint64_t)value {
  softmetal::ordered_after((__bridge void*)event, value);
  SoftEvent* target = static_cast<SoftEvent*>(event);
  worker_->give([=] {
    if (![target await:value]) report("a queue waits for an event that is never signalled");
  });
}
@end
