// Encoders and command buffers: their order of calls, grids, and how they end.
#include <string>

#include "tests/softmetal/driver/host.h"

namespace driver {

const Scenarios& commands_scenarios() {
  static const Scenarios all = {
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
  };
  return all;
}

}  // namespace driver
