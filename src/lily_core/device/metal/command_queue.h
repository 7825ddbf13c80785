// Writes prepared dispatches into command buffers and submits them: once for Metal 3, once for Metal 4.
#pragma once

#import <Metal/Metal.h>

#include <memory>
#include <optional>
#include <utility>

#include "device/metal/failure.h"
#include "device/metal/metal_executable.h"
#include "device/metal/progress.h"
#include "device/metal/residency.h"

namespace lily::metal {

// Command buffers that may be unfinished at a time: enough to keep the GPU busy, few enough to notice soon that one hangs.
constexpr std::size_t kMaxUnfinished = 8;

// Command buffers run one after another, in the order of their tickets.
class CommandQueue {
 public:
  virtual ~CommandQueue() = default;

  // Once per segment, before it is replayed.
  virtual void prepare(PreparedSegment& segment) = 0;

  // begin, then dispatch and barrier, then submit; the ticket is that of the command buffer in between. At most kMaxUnfinished
  // command buffers are unfinished when one begins, counting itself. begin() throws DeviceError and leaves nothing open.
  virtual void begin(Ticket ticket) = 0;
  virtual void dispatch(const PreparedSegment& segment, std::size_t index) = 0;
  // What follows sees what came before. Without one, dispatches may run in any order or at once.
  virtual void barrier() = 0;
  // Progress::finished is called when the command buffer is.
  virtual void submit(Ticket ticket) = 0;
};

// What both generations do alike.
class TrackingQueue : public CommandQueue {
 protected:
  explicit TrackingQueue(std::shared_ptr<Progress> progress) : progress_(std::move(progress)) {}

  // Behind the bindings of a dispatch, which each generation has its own way for.
  template <typename Encoder>
  static void encode(Encoder encoder, const PreparedDispatch& dispatch) {
    [encoder setComputePipelineState:dispatch.pipeline];
    [encoder dispatchThreadgroups:dispatch.threadgroups threadsPerThreadgroup:dispatch.threads];
  }

  // For Metal's handlers, which run on threads of their own and may outlive the queue.
  class Report {
   public:
    Report(std::shared_ptr<Progress> progress, Ticket ticket) : progress_(std::move(progress)), ticket_(ticket) {}
    void finished(double seconds) const { progress_->finished(ticket_, seconds, std::nullopt); }
    void failed(NSError* error) const { progress_->finished(ticket_, 0, failure_of(error)); }

   private:
    std::shared_ptr<Progress> progress_;
    Ticket ticket_;
  };
  Report report_of(Ticket ticket) const { return {progress_, ticket}; }

 private:
  std::shared_ptr<Progress> progress_;
};

std::unique_ptr<CommandQueue> make_metal3_queue(id<MTLDevice> device, id<MTLResidencySet> residency,
                                                std::shared_ptr<Progress> progress);
API_AVAILABLE(macos(26.0))
std::unique_ptr<CommandQueue> make_metal4_queue(id<MTLDevice> device, id<MTLResidencySet> residency,
                                                std::shared_ptr<Progress> progress);

}  // namespace lily::metal
