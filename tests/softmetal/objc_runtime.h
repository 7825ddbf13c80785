// A small Objective-C runtime for Linux: what clang emits with -fobjc-runtime=macosx-26.0 on x86-64 ELF, ARC included.
// Not there, since nothing here needs it: @try, forwarding, associated objects, key-value coding, tagged pointers, +load.
#pragma once

#include <map>
#include <string>

namespace softmetal {

// Objects that are alive, by the name of their class. Class objects, constant strings and blocks do not count.
std::map<std::string, long> live_objects();

}  // namespace softmetal

extern "C" {
void* objc_autoreleasePoolPush();
void objc_autoreleasePoolPop(void* pool);
}
