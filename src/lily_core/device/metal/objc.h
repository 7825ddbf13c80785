// Between C++ and Objective-C.
#pragma once

#import <Foundation/Foundation.h>

#include <string>
#include <string_view>

extern "C" {
void* objc_autoreleasePoolPush(void);
void objc_autoreleasePoolPop(void* pool);
}

namespace lily::metal {

// Every entry from C++ has one: threads of Python have no pool. Unlike @autoreleasepool it also ends when an exception passes.
class AutoreleasePool {
 public:
  AutoreleasePool() : pool_(objc_autoreleasePoolPush()) {}
  ~AutoreleasePool() { objc_autoreleasePoolPop(pool_); }
  AutoreleasePool(const AutoreleasePool&) = delete;
  AutoreleasePool& operator=(const AutoreleasePool&) = delete;

 private:
  void* pool_;
};

inline NSString* ns_string(std::string_view text) {
  NSString* string = [[NSString alloc] initWithBytes:text.data() length:text.size() encoding:NSUTF8StringEncoding];
  return string ? string : @"";
}

inline std::string text_of(NSString* string) {
  const char* text = string.UTF8String;
  return text ? text : "";
}

inline std::string text_of(NSError* error) { return error ? text_of(error.localizedDescription) : "no reason given"; }

}  // namespace lily::metal
