// Dispatches and command buffers that depend on each other.
#include <functional>
#include <string>

#include "tests/softmetal/driver/host.h"

namespace driver {
namespace {

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

}  // namespace

const Scenarios& order_scenarios() {
  static const Scenarios all = {
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
  };
  return all;
}

}  // namespace driver
