// Buffers: bound, resident, freed, as long as Metal allows, over memory of the host.
#include <sys/mman.h>

#include <string>

#include "tests/softmetal/driver/host.h"

namespace driver {

const Scenarios& memory_scenarios() {
  static const Scenarios all = {
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
  };
  return all;
}

}  // namespace driver
