// Metal 3: macOS 15, and later ones when asked for.
#include <utility>

#include "device/device.h"
#include "device/metal/command_queue.h"
#include "device/metal/objc.h"

namespace lily::metal {
namespace {

class Metal3Queue final : public TrackingQueue {
 public:
  Metal3Queue(id<MTLDevice> device, id<MTLResidencySet> residency, std::shared_ptr<Progress> progress)
      : TrackingQueue(std::move(progress)), queue_([device newCommandQueue]), event_([device newSharedEvent]) {
    if (!queue_ || !event_) throw DeviceError("metal", "", "queue", "Metal makes no command queue", true);
    queue_.label = @"lily";
    [queue_ addResidencySet:residency];
  }

  void prepare(PreparedSegment&) override {}

  void begin(Ticket ticket) override {
    command_buffer_ = [queue_ commandBufferWithUnretainedReferences];
    // Nothing orders command buffers that use untracked memory but this wait.
    [command_buffer_ encodeWaitForEvent:event_ value:ticket - 1];
    encoder_ = [command_buffer_ computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
    if (!encoder_) throw DeviceError("metal", "", "command_buffer", "Metal makes no command buffer", true);
  }

  void dispatch(const PreparedSegment& segment, std::size_t index) override {
    const PreparedDispatch& dispatch = segment.dispatches[index];
    [encoder_ setBuffers:segment.buffers.data() + dispatch.first_binding
                 offsets:segment.offsets.data() + dispatch.first_binding
               withRange:NSMakeRange(0, dispatch.num_bindings)];
    encode(encoder_, dispatch);
  }

  void barrier() override { [encoder_ memoryBarrierWithScope:MTLBarrierScopeBuffers]; }

  void submit(Ticket ticket) override {
    [encoder_ endEncoding];
    [command_buffer_ encodeSignalEvent:event_ value:ticket];
    const Report report = report_of(ticket);
    id<MTLSharedEvent> event = event_;
    [command_buffer_ addCompletedHandler:^(id<MTLCommandBuffer> done) {
      const AutoreleasePool pool;
      if (done.status == MTLCommandBufferStatusCompleted) return report.finished(done.GPUEndTime - done.GPUStartTime);
      // A command buffer that failed signals nothing, and the next one waits for it.
      if (event.signaledValue < ticket) event.signaledValue = ticket;
      report.failed(done.error);
    }];
    [command_buffer_ commit];
    encoder_ = nil;
    command_buffer_ = nil;
  }

 private:
  id<MTLCommandQueue> queue_;
  id<MTLSharedEvent> event_;  // has the value of the last finished ticket
  id<MTLCommandBuffer> command_buffer_;
  id<MTLComputeCommandEncoder> encoder_;
};

}  // namespace

std::unique_ptr<CommandQueue> make_metal3_queue(id<MTLDevice> device, id<MTLResidencySet> residency,
                                                std::shared_ptr<Progress> progress) {
  return std::make_unique<Metal3Queue>(device, residency, std::move(progress));
}

}  // namespace lily::metal
