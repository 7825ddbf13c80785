// Metal 4: macOS 26 and later.
#include <utility>
#include <vector>

#include "device/device.h"
#include "device/metal/command_queue.h"
#include "device/metal/objc.h"

namespace lily::metal {
namespace {

class API_AVAILABLE(macos(26.0)) Metal4Queue final : public TrackingQueue {
 public:
  Metal4Queue(id<MTLDevice> device, id<MTLResidencySet> residency, std::shared_ptr<Progress> progress)
      : TrackingQueue(std::move(progress)), device_(device), queue_([device newMTL4CommandQueue]) {
    if (!queue_) throw DeviceError("metal", "", "queue", "Metal makes no command queue", true);
    [queue_ addResidencySet:residency];
    for (std::size_t i = 0; i < kMaxUnfinished; ++i) {
      allocators_.push_back([device newCommandAllocator]);
      command_buffers_.push_back([device newCommandBuffer]);
      if (!allocators_[i] || !command_buffers_[i])
        throw DeviceError("metal", "", "command_buffer", "Metal makes no command buffer", true);
    }
  }

  void prepare(PreparedSegment& segment) override {
    for (const PreparedDispatch& dispatch : segment.dispatches) {
      MTL4ArgumentTableDescriptor* descriptor = [MTL4ArgumentTableDescriptor new];
      descriptor.maxBufferBindCount = dispatch.num_bindings;
      NSError* error = nil;
      id<MTL4ArgumentTable> table = [device_ newArgumentTableWithDescriptor:descriptor error:&error];
      if (!table) throw DeviceError("metal", "", "argument_table", "Metal makes no argument table: " + text_of(error));
      for (std::size_t i = 0; i < dispatch.num_bindings; ++i) {
        const std::size_t binding = dispatch.first_binding + i;
        [table setAddress:segment.buffers[binding].gpuAddress + segment.offsets[binding] atIndex:i];
      }
      segment.argument_tables.push_back(table);
    }
  }

  void begin(Ticket ticket) override {
    // Whoever used this allocator before has finished: only kMaxUnfinished are on their way.
    id<MTL4CommandAllocator> allocator = allocators_[ticket % kMaxUnfinished];
    command_buffer_ = command_buffers_[ticket % kMaxUnfinished];
    [allocator reset];
    [command_buffer_ beginCommandBufferWithAllocator:allocator];
    encoder_ = [command_buffer_ computeCommandEncoder];
    if (!encoder_) {
      [command_buffer_ endCommandBuffer];
      throw DeviceError("metal", "", "command_buffer", "Metal makes no command encoder", true);
    }
    // Nothing else orders this command buffer behind the one before.
    [encoder_ barrierAfterQueueStages:MTLStageDispatch
                         beforeStages:MTLStageDispatch
                    visibilityOptions:MTL4VisibilityOptionDevice];
  }

  void dispatch(const PreparedSegment& segment, std::size_t index) override {
    [encoder_ setArgumentTable:segment.argument_tables[index]];
    encode(encoder_, segment.dispatches[index]);
  }

  void barrier() override {
    [encoder_ barrierAfterEncoderStages:MTLStageDispatch
                    beforeEncoderStages:MTLStageDispatch
                      visibilityOptions:MTL4VisibilityOptionDevice];
  }

  void submit(Ticket ticket) override {
    [encoder_ endEncoding];
    [command_buffer_ endCommandBuffer];
    const Report report = report_of(ticket);
    MTL4CommitOptions* options = [MTL4CommitOptions new];
    [options addFeedbackHandler:^(id<MTL4CommitFeedback> feedback) {
      const AutoreleasePool pool;
      if (feedback.error) return report.failed(feedback.error);
      report.finished(feedback.GPUEndTime - feedback.GPUStartTime);
    }];
    [queue_ commit:&command_buffer_ count:1 options:options];
    encoder_ = nil;
  }

 private:
  id<MTLDevice> device_;
  id<MTL4CommandQueue> queue_;
  std::vector<id<MTL4CommandAllocator>> allocators_;
  std::vector<id<MTL4CommandBuffer>> command_buffers_;
  id<MTL4CommandBuffer> command_buffer_;
  id<MTL4ComputeCommandEncoder> encoder_;
};

}  // namespace

std::unique_ptr<CommandQueue> make_metal4_queue(id<MTLDevice> device, id<MTLResidencySet> residency,
                                                std::shared_ptr<Progress> progress) {
  return std::make_unique<Metal4Queue>(device, residency, std::move(progress));
}

}  // namespace lily::metal
