#include "device/metal/failure.h"

#import <Metal/Metal.h>

#include <string>

#include "device/metal/objc.h"

namespace lily::metal {
namespace {

struct Known {
  NSInteger metal_code;
  const char* code;
  bool is_fatal;  // Metal may ignore later submissions, or memory is in doubt
  const char* hint;
};

constexpr Known kKnown[] = {
    {MTLCommandBufferErrorInternal, "internal", false, ""},
    {MTLCommandBufferErrorTimeout, "gpu_timeout", false, "; macOS ended work that held the GPU for too long"},
    {MTLCommandBufferErrorPageFault, "page_fault", true, ""},
    {MTLCommandBufferErrorAccessRevoked, "access_revoked", true, "; macOS ignores this process after earlier errors: start it again"},
    {MTLCommandBufferErrorNotPermitted, "not_permitted", true, ""},
    {MTLCommandBufferErrorOutOfMemory, "out_of_memory", false, "; lower memory_limit or close other programs"},
    {MTLCommandBufferErrorInvalidResource, "invalid_resource", true, ""},
    {MTLCommandBufferErrorDeviceRemoved, "device_removed", true, ""},
};

}  // namespace

Failure failure_of(NSError* error) {
  const std::string domain = text_of(error.domain);
  Failure failure{"command_buffer", text_of(error) + " (" + domain + " " + std::to_string(error.code) + ")", false};
  if (![error.domain isEqualToString:MTLCommandBufferErrorDomain]) return failure;
  for (const Known& known : kKnown) {
    if (known.metal_code != error.code) continue;
    failure.code = known.code;
    failure.is_fatal = known.is_fatal;
    failure.message += known.hint;
  }
  return failure;
}

}  // namespace lily::metal
